//! Gives freed memory back to the system.
//!
//! glibc keeps the memory that a thread has freed for that thread: after a peak of many sessions, a server that has
//! nothing to do would keep the memory of the peak. docs/decisions/0035-memory-after-a-peak.md compares allocators.

/// Gives freed memory back to the system, as far as the allocator can. Locks the allocator for some milliseconds, so
/// call it when there is nothing to do.
pub fn release() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the only way to ask glibc")]
    // SAFETY: malloc_trim may be called at any time by any thread, and has no effect on memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
