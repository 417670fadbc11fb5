//! Gives freed memory back to the system.
//!
//! glibc reserves freed memory for the thread that freed it: after a peak of many sessions, an idle server would keep
//! the memory of the peak. docs/decisions/0035-memory-after-a-peak.md compares allocators.

/// Gives freed memory back to the system; does nothing without glibc. Locks the allocator for some milliseconds, so
/// call it when there is nothing to do.
pub fn release() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the only way to ask glibc")]
    // SAFETY: malloc_trim may be called at any time by any thread, and has no effect on memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
