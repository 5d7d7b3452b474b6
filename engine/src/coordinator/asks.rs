//! Who asks for a checkpoint, a savepoint or a stop with one: looked at, refused with a reason, or put in its turn.

use actix::{ActorFutureExt, AsyncContext, Context, Handler, WrapFuture};

use super::checkpoint::Purpose;
use super::messages::AskCheckpoint;
use super::{Asked, Coordinator};

impl Handler<AskCheckpoint> for Coordinator {
    type Result = ();
    fn handle(&mut self, m: AskCheckpoint, cx: &mut Context<Self>) {
        let Some(keeper) = self.keeper.as_mut().filter(|k| k.machine.is_some()) else {
            return m.asked.open(Err(NO_CHECKPOINTS.to_owned()));
        };
        match m.savepoint {
            Some(name) => self.look_at_name(cx, name, m.stop, m.asked),
            None => {
                keeper.ask(&Purpose::Periodic, m.asked);
                self.take_asked(cx, Purpose::Periodic);
            }
        }
    }
}

const NO_CHECKPOINTS: &str = "the job takes no checkpoints, or is not running: give it Job::checkpoints";

impl Coordinator {
    fn take_asked(&mut self, cx: &mut Context<Self>, purpose: Purpose) {
        self.with_machine(cx, |machine, now| {
            machine.ask(purpose);
            machine.tick(now)
        });
    }

    /// Takes a savepoint, or drains the job with one, if it can have that name: once tasks have ended there is no way back.
    fn look_at_name(&mut self, cx: &mut Context<Self>, name: String, stop: bool, asked: Asked) {
        let Some(storage) = self.keeper.as_ref().and_then(|k| k.storage.clone()) else {
            return asked.open(Err(NO_CHECKPOINTS.to_owned()));
        };
        let looking = storage.may_save_as(name.clone());
        cx.spawn(looking.into_actor(self).map(move |free, me, cx| match free {
            Ok(()) if stop => me.stop_with(cx, name, asked),
            Ok(()) => me.save_as(cx, name, asked),
            Err(why) if stop => asked.open(Err(format!("the job goes on: {why}"))),
            Err(why) => asked.open(Err(why)),
        }));
    }

    fn save_as(&mut self, cx: &mut Context<Self>, name: String, asked: Asked) {
        // The attempt may have ended meanwhile.
        let Some(keeper) = self.keeper.as_mut().filter(|k| k.machine.is_some()) else {
            return asked.open(Err(NO_CHECKPOINTS.to_owned()));
        };
        if keeper.machine.as_ref().is_some_and(|machine| machine.is_to_save(&name)) {
            return asked.open(Err(format!("savepoint '{name}' is being taken; choose another name")));
        }
        let purpose = Purpose::Savepoint(name);
        keeper.ask(&purpose, asked);
        self.take_asked(cx, purpose);
    }

    fn stop_with(&mut self, cx: &mut Context<Self>, name: String, asked: Asked) {
        let stopping = self.drain.is_some();
        let Some(keeper) = &mut self.keeper else { return asked.open(Err(NO_CHECKPOINTS.to_owned())) };
        // The attempt may have ended meanwhile.
        let (Some(machine), Some(storage)) = (&mut keeper.machine, &keeper.storage) else {
            return asked.open(Err(NO_CHECKPOINTS.to_owned()));
        };
        if let Some(other) = machine.stops_with() {
            return asked.open(Err(format!("the job is being stopped with savepoint '{other}' already")));
        }
        if stopping {
            return asked.open(Err("the job is being stopped already, without a savepoint".to_owned()));
        }
        if machine.is_to_save(&name) {
            let why = format!("the job goes on: savepoint '{name}' is being taken; choose another name");
            return asked.open(Err(why));
        }
        storage.stop_with(&name);
        machine.stop_with(name.clone());
        keeper.ask(&Purpose::Last(Some(name)), asked);
        cx.notify(super::Drain(crate::EndKind::Keep));
    }
}
