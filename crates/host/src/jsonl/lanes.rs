//! Lanes: queries for one session are accepted in the order of their lines, queries for different sessions concurrently.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The last entry of each lane.
#[derive(Default, Clone)]
pub(super) struct Lanes(Arc<Mutex<LaneMap>>);

#[derive(Default)]
struct LaneMap {
    last: u64,
    lanes: HashMap<String, (u64, oneshot::Receiver<()>)>,
}

/// A position in a lane; dropping it lets the next one proceed.
pub(super) struct LanePosition {
    lanes: Lanes,
    lane: String,
    no: u64,
    before: Option<oneshot::Receiver<()>>,
    _done: oneshot::Sender<()>,
}

impl Lanes {
    /// Joins the end of a lane.
    pub(super) fn enter(&self, lane: String) -> LanePosition {
        let mut state = self.0.lock();
        state.last += 1;
        let no = state.last;
        let (done, after) = oneshot::channel();
        let before = state.lanes.insert(lane.clone(), (no, after)).map(|(_, before)| before);
        LanePosition { lanes: self.clone(), lane, no, before, _done: done }
    }
}

impl LanePosition {
    /// Waits until all earlier positions of the lane are dropped.
    pub(super) async fn wait(&mut self) {
        if let Some(before) = self.before.take() {
            let _ = before.await;
        }
    }
}

impl Drop for LanePosition {
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
    async fn a_lane_is_sequential_and_two_lanes_are_concurrent() {
        let lanes = Lanes::default();
        let (mut first, mut second, mut other) =
            (lanes.enter("a".into()), lanes.enter("a".into()), lanes.enter("b".into()));
        first.wait().await;
        other.wait().await;
        {
            let waits = second.wait();
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
