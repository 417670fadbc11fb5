//! Ids: the only place that generates random numbers.

use std::sync::Arc;

use mainspring_core::{
    ArtifactId, AttemptId, BindingId, DelegationId, EventId, GrantId, KeyId, LineId, MessageId, NodeId,
    RunId, SessionId, StepId, WaitId, WebhookId,
};
use parking_lot::Mutex;

/// Generates ids: at random, or from a seed so that a test can be repeated.
#[derive(Debug, Clone)]
pub struct Ids(Arc<Mutex<Source>>);

#[derive(Debug)]
enum Source {
    /// Random bytes are read in blocks: one system call for many ids.
    System {
        block: Box<[u8; 1024]>,
        consumed: usize,
    },
    Seeded {
        state: u64,
    },
}

impl Ids {
    /// Creates a source of random ids.
    pub fn system() -> Self {
        Self(Arc::new(Mutex::new(Source::System { block: Box::new([0; 1024]), consumed: 1024 })))
    }

    /// Creates a source of pseudo-random ids, determined by `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Source::Seeded { state: seed })))
    }

    fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        match &mut *self.0.lock() {
            Source::System { block, consumed } => {
                if *consumed + N > block.len() {
                    refill(&mut block[..]);
                    *consumed = 0;
                }
                bytes.copy_from_slice(&block[*consumed..*consumed + N]);
                *consumed += N;
            }
            Source::Seeded { state } => {
                bytes.iter_mut().for_each(|byte| *byte = splitmix(state).to_le_bytes()[0]);
            }
        }
        bytes
    }
}

impl Ids {
    /// Generates a secret of 256 bits, as 64 hexadecimal digits.
    pub fn secret(&self) -> String {
        self.bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

macro_rules! id_generators {
    ($($name:ident: $id:ident),* $(,)?) => {
        impl Ids {
            $(
                #[doc = concat!("Generates a [`", stringify!($id), "`].")]
                pub fn $name(&self) -> $id {
                    $id::from_random(self.bytes())
                }
            )*
        }
    };
}
id_generators! {
    session: SessionId, run: RunId, attempt: AttemptId, event: EventId, message: MessageId, node: NodeId, wait: WaitId,
    line: LineId, key: KeyId, binding: BindingId, grant: GrantId, artifact: ArtifactId, step: StepId,
    delegation: DelegationId, webhook: WebhookId,
}

#[expect(clippy::disallowed_methods, reason = "this is the home of random numbers")]
fn refill(block: &mut [u8]) {
    // Without randomness ids could repeat, and no guarantee of the kernel would hold.
    getrandom::fill(block).expect("the operating system provides random numbers");
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_ids_and_random_ids_differ() {
        let generate = |ids: Ids| (0..100).map(|_| ids.run()).collect::<Vec<_>>();
        assert_eq!(generate(Ids::seeded(7)), generate(Ids::seeded(7)));
        assert_ne!(generate(Ids::seeded(7)), generate(Ids::seeded(8)));
        let random: std::collections::HashSet<_> = generate(Ids::system()).into_iter().collect();
        assert_eq!(random.len(), 100);
    }
}
