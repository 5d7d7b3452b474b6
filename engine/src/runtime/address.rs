//! The address of an actor, for code outside the runtime: sends, never waits.

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Message};

pub(crate) struct Address<A: Actor>(Addr<A>);

impl<A: Actor> Clone for Address<A> {
    fn clone(&self) -> Self {
        Address(self.0.clone())
    }
}

impl<A: Actor> Address<A> {
    pub(crate) fn new(address: Addr<A>) -> Self {
        Address(address)
    }

    /// Sends; a message to an actor that is gone is dropped.
    pub(crate) fn send<M>(&self, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        A: Handler<M>,
        A::Context: ToEnvelope<A, M>,
    {
        self.0.do_send(message);
    }
}
