//! Lanes: queries for one session are accepted in the order of their lines, those of different sessions side by side.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Who goes last in each lane.
#[derive(Default, Clone)]
pub(super) struct Lanes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: u64,
    lanes: HashMap<String, (u64, oneshot::Receiver<()>)>,
}

/// A place in a lane; dropped, the next one's turn has come.
pub(super) struct Turn {
    lanes: Lanes,
    lane: String,
    no: u64,
    before: Option<oneshot::Receiver<()>>,
    _done: oneshot::Sender<()>,
}

impl Lanes {
    /// The place behind everybody who is in the lane.
    pub(super) fn enter(&self, lane: String) -> Turn {
        let mut state = self.0.lock();
        state.last += 1;
        let no = state.last;
        let (done, after) = oneshot::channel();
        let before = state.lanes.insert(lane.clone(), (no, after)).map(|(_, before)| before);
        Turn { lanes: self.clone(), lane, no, before, _done: done }
    }
}

impl Turn {
    /// Resolves once everybody before has gone.
    pub(super) async fn come(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = before.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.lanes.0.lock();
        if state.lanes.get(&self.lane).is_some_and(|(no, _)| *no == self.no) {
            state.lanes.remove(&self.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_after_another_in_a_lane_and_side_by_side_in_two() {
        let lanes = Lanes::default();
        let (mut first, mut second, mut other) =
            (lanes.enter("a".into()), lanes.enter("a".into()), lanes.enter("b".into()));
        first.come().await;
        other.come().await;
        {
            let waits = second.come();
            tokio::pin!(waits);
            assert!(
                std::future::poll_fn(|cx| std::task::Poll::Ready(waits.as_mut().poll(cx))).await.is_pending()
            );
            drop(first);
            waits.await;
        }
        drop((second, other));
        assert!(lanes.0.lock().lanes.is_empty());
    }
}
