//! Servers as processes, which end with their test.

use std::collections::HashMap;
use std::net::TcpListener;
use std::ops::{Deref, DerefMut};
use std::process::Child;

/// Processes by number. Dropping them kills them.
#[derive(Default)]
pub(crate) struct Processes(HashMap<usize, Child>);

impl Deref for Processes {
    type Target = HashMap<usize, Child>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Processes {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            // A stopped process is killed as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    /// Kills a process at once.
    pub(crate) fn kill(&mut self, n: usize) {
        let mut child = self.0.remove(&n).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Returns free ports, which were held together so that they differ.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|held| held.local_addr().unwrap().port()).collect()
}
