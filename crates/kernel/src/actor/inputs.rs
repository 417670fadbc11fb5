//! The inputs of an actor that wait to be handled.
//!
//! An input that needs the store is deferred while the store cannot be written, and handled before later inputs.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::Input;
use crate::error::Error;

// Boxed: a channel allocates the places of 32 inputs for each session in memory.
pub(crate) type Sender = mpsc::UnboundedSender<Box<Input>>;
pub(crate) type Receiver = mpsc::UnboundedReceiver<Box<Input>>;

/// The channel of an actor, and the inputs that were received too early.
pub(super) struct Inputs {
    tx: Sender,
    rx: Receiver,
    /// Inputs that arrived while the store could not be written.
    deferred: VecDeque<Box<Input>>,
}

impl Inputs {
    pub(super) fn new((tx, rx): (Sender, Receiver)) -> Self {
        Self { tx, rx, deferred: VecDeque::new() }
    }

    /// The sender of this actor's inputs.
    pub(super) fn sender(&self) -> &Sender {
        &self.tx
    }

    /// Returns the next input, deferred ones first; `None` once the channel is closed and all inputs are handled. If the
    /// future is dropped before it returns, no input is lost.
    pub(super) async fn next(&mut self) -> Option<Box<Input>> {
        match self.deferred.pop_front() {
            Some(input) => Some(input),
            None => self.rx.recv().await,
        }
    }

    /// Returns the next input that was not deferred.
    pub(super) async fn receive(&mut self) -> Option<Box<Input>> {
        self.rx.recv().await
    }

    /// Keeps an input until the store can be written.
    pub(super) fn defer(&mut self, input: Box<Input>) {
        self.deferred.push_back(input);
    }

    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rx.is_empty() && self.deferred.is_empty()
    }

    /// Closes the channel: no further input is accepted. Those that have arrived can still be received.
    pub(super) fn close(&mut self) {
        self.rx.close();
    }

    /// Closes the channel, and refuses every input that has arrived.
    pub(super) async fn refuse_all(&mut self, error: &Error) {
        self.close();
        while let Some(input) = self.next().await {
            input.refuse(error);
        }
    }
}
