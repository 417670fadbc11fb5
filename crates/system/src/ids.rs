//! Ids: the only place that generates random numbers.
//!
//! The ids of sessions, runs, attempts, messages and lines begin with 16 bits of the time, in units of 64 ms, and are
//! random otherwise. Rows of the same moment then lie in the same few pages of each index: a turn under load writes 3
//! pages to the WAL, with entirely random ids up to 21. There are only 16 time bits, which repeat after 70 minutes, so
//! that a short prefix of an id also has random bits and is nearly unique.

use std::sync::Arc;

use mainspring_core::{
    ArtifactId, AttemptId, BindingId, DelegationId, EventId, FeedbackId, GoalId, GrantId, KeyId, LineId,
    MessageId, NodeId, RunId, SessionId, StepId, WaitId, WebhookId,
};
use parking_lot::Mutex;

use crate::clock::system_now;

/// The unit of time in ids is 2 to the power of this number, in milliseconds: 64 ms.
const TIME_UNIT_BITS: u32 = 6;
/// The number of random bits in a [`LineId`], which has 63 bits.
const LINE_RANDOM_BITS: u32 = 47;

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
    /// Returns 2 bytes of the time and 14 random bytes. With a seed, the seed determines all 16 bytes.
    fn timed_bytes(&self) -> [u8; 16] {
        let mut bytes = self.bytes();
        if let Some(unit) = self.time_unit() {
            bytes[..2].copy_from_slice(&unit.to_be_bytes());
        }
        bytes
    }

    /// Generates a [`LineId`].
    pub fn line(&self) -> LineId {
        let LineId(random) = LineId::from_random(self.bytes());
        match self.time_unit() {
            Some(unit) => {
                LineId((i64::from(unit) << LINE_RANDOM_BITS) | (random & ((1 << LINE_RANDOM_BITS) - 1)))
            }
            None => LineId(random),
        }
    }

    /// Returns the bits of the time; `None` if a seed determines the ids.
    fn time_unit(&self) -> Option<u16> {
        match &*self.0.lock() {
            // Truncates to the low 16 bits.
            Source::System { .. } => Some((system_now().0 >> TIME_UNIT_BITS) as u16),
            Source::Seeded { .. } => None,
        }
    }

    /// Generates a secret of 256 bits, as 64 hexadecimal digits.
    pub fn secret(&self) -> String {
        self.bytes::<32>().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

macro_rules! id_generators {
    ($bytes:ident: $($name:ident: $id:ident),* $(,)?) => {
        impl Ids {
            $(
                #[doc = concat!("Generates a [`", stringify!($id), "`].")]
                pub fn $name(&self) -> $id {
                    $id::from_random(self.$bytes())
                }
            )*
        }
    };
}
id_generators! { timed_bytes: session: SessionId, run: RunId, attempt: AttemptId, message: MessageId }
id_generators! {
    bytes: event: EventId, node: NodeId, wait: WaitId, key: KeyId, binding: BindingId, grant: GrantId,
    artifact: ArtifactId, step: StepId, delegation: DelegationId, webhook: WebhookId, goal: GoalId,
    feedback: FeedbackId,
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

    #[test]
    fn ids_of_one_moment_share_their_time_bits() {
        let ids = Ids::system();
        let before = ids.time_unit().unwrap();
        let runs: Vec<_> = (0..100).map(|_| ids.run()).collect();
        let lines: Vec<_> = (0..100).map(|_| ids.line()).collect();
        let span = ids.time_unit().unwrap().wrapping_sub(before);
        let unit = |bytes: [u8; 2]| u16::from_be_bytes(bytes).wrapping_sub(before);
        assert!(runs.iter().all(|run| unit([run.as_bytes()[0], run.as_bytes()[1]]) <= span));
        let of_line = |line: &LineId| ((line.0 >> LINE_RANDOM_BITS) as u16).wrapping_sub(before);
        assert!(lines.iter().all(|line| line.0 >= 0 && of_line(line) <= span));
        let distinct: std::collections::HashSet<_> = lines.into_iter().collect();
        assert_eq!(distinct.len(), 100);
    }
}
