//! Collectives that are started now and waited for later, each with memory of its own.
//!
//! An [`Underway`] is a transport with such operations: every wait on it, for one of them or for anything else, moves all
//! of them on. They can be of several [circles](super::Circle), and of all ranks; ranks may start operations of different
//! circles in different orders, those of one circle in the same. Nothing runs behind the caller's back.
//!
//! A rank should start what others may already have started before it waits for something else: what arrives for an
//! operation that is not there is put aside only up to some bytes, then its senders wait.

use super::flight::add;
use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::schedule::Schedule;
use crate::transport::vigil::owed;
use crate::transport::{
    Abort, Activity, Company, Fault, Incoming, Interest, LinkFault, Moved, Outgoing, Tag, Traffic, Transport,
    Vigil,
};
use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

/// A transport, and what is under way on it.
pub struct Underway {
    transport: Box<dyn Transport>,
    /// In the order in which they were started.
    tasks: Vec<(u64, Box<dyn Task>)>,
    started: u64,
    wanted: Vec<Interest>,
}

/// One operation that is under way; its memory comes back with [`Underway::finish`].
#[derive(Debug)]
pub struct Ticket<T> {
    number: u64,
    elements: PhantomData<fn() -> T>,
}

/// An operation with its memory.
trait Task: Send {
    /// Moves what can be moved without waiting; says whether anything was.
    fn advance(&mut self, transport: &mut dyn Transport) -> Result<bool, Fault>;
    fn is_done(&self) -> bool;
    fn wanted(&mut self) -> &[Interest];
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

struct Job<T, O> {
    operation: Operation,
    operator: O,
    buffer: Vec<T>,
    done: bool,
}

impl<T: Element, O: Operator<T> + 'static> Task for Job<T, O> {
    fn advance(&mut self, transport: &mut dyn Transport) -> Result<bool, Fault> {
        if self.done {
            return Ok(false);
        }
        let Job { operation, operator, buffer, .. } = self;
        let progress = operation.progress(transport, buffer, operator, Company::Several)?;
        self.done = progress == Progress::Done;
        Ok(progress != Progress::Idle)
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn wanted(&mut self) -> &[Interest] {
        self.operation.wanted()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        Box::new(self.buffer)
    }
}

impl From<Box<dyn Transport>> for Underway {
    fn from(transport: Box<dyn Transport>) -> Underway {
        Underway { transport, tasks: Vec::new(), started: 0, wanted: Vec::new() }
    }
}

impl Underway {
    /// Starts an operation; its first frames leave at once, as far as they go without waiting.
    pub fn start<T: Element>(
        &mut self,
        schedule: &Schedule,
        tag: Tag,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<Ticket<T>, Fault> {
        let mut operation = Operation::new();
        operation.start::<T>(schedule, self.transport.as_ref(), tag, buffer.len())?;
        self.started += 1;
        self.tasks.push((self.started, Box::new(Job { operation, operator, buffer, done: false })));
        self.advance()?;
        Ok(Ticket { number: self.started, elements: PhantomData })
    }

    /// Whether anything that was started is not complete.
    pub fn is_busy(&self) -> bool {
        self.tasks.iter().any(|(_, task)| !task.is_done())
    }

    /// Moves what can be moved without waiting; says whether anything was.
    pub fn advance(&mut self) -> Result<bool, Fault> {
        let mut moved = false;
        for (_, task) in &mut self.tasks {
            moved |= task.advance(self.transport.as_mut())?;
        }
        Ok(moved)
    }

    /// Waits until this operation is complete, at most until the deadline, and returns its memory. `None` if it is not
    /// one of those that are under way here.
    pub fn finish<T: Element>(
        &mut self,
        ticket: Ticket<T>,
        deadline: Duration,
    ) -> Result<Option<Vec<T>>, Fault> {
        let mut vigil = Vigil::new(self.now(), deadline);
        loop {
            let moved = self.advance()?;
            let Some(index) = self.tasks.iter().position(|(number, _)| *number == ticket.number) else {
                return Ok(None);
            };
            if self.tasks[index].1.is_done() {
                let (_, task) = self.tasks.remove(index);
                return Ok(task.into_any().downcast().ok().map(|buffer| *buffer));
            }
            let own = self.tasks[index].1.wanted().to_vec();
            self.watch(&mut vigil, &own, moved)?;
        }
    }

    /// Waits for whatever any of them wants; who is silent is one of those that are wanted here.
    fn watch(&mut self, vigil: &mut Vigil, own: &[Interest], moved: bool) -> Result<(), Fault> {
        self.wanted.clear();
        self.wanted.extend_from_slice(own);
        for (_, task) in self.tasks.iter_mut().filter(|(_, task)| !task.is_done()) {
            add(&mut self.wanted, task.wanted());
        }
        self.transport.attend(vigil, &self.wanted, moved).map_err(|fault| match fault.cause.is_late() {
            true => self.transport.overdue(vigil, owed(own)),
            false => fault,
        })
    }
}

impl AsRef<dyn Transport> for Underway {
    fn as_ref(&self) -> &(dyn Transport + 'static) {
        self
    }
}

impl AsMut<dyn Transport> for Underway {
    fn as_mut(&mut self) -> &mut (dyn Transport + 'static) {
        self
    }
}

impl Transport for Underway {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn world(&self) -> usize {
        self.transport.world()
    }

    fn now(&self) -> Duration {
        self.transport.now()
    }

    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<Moved, Fault> {
        self.transport.send(tag, frame)
    }

    fn receive(&mut self, tag: Tag, frame: Incoming<'_>, company: Company) -> Result<Moved, Fault> {
        let company = if self.is_busy() { Company::Several } else { company };
        self.transport.receive(tag, frame, company)
    }

    fn attend(&mut self, vigil: &mut Vigil, wanted: &[Interest], moved: bool) -> Result<(), Fault> {
        if !self.is_busy() {
            return self.transport.attend(vigil, wanted, moved);
        }
        let moved = self.advance()? || moved;
        self.watch(vigil, wanted, moved)
    }

    fn overdue(&self, vigil: &Vigil, owed: Vec<usize>) -> Fault {
        self.transport.overdue(vigil, owed)
    }

    fn glance(&mut self) -> Result<(), Fault> {
        self.advance()?;
        self.transport.glance()
    }

    fn nudge(&mut self) {
        self.transport.nudge();
    }

    fn admit_groups(&mut self) {
        self.transport.admit_groups();
    }

    fn adds_up(&self) -> bool {
        self.transport.adds_up()
    }

    fn add_up(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<Moved, Fault> {
        self.transport.add_up(tag, buffer)
    }

    fn inject(&mut self, peer: usize, fault: LinkFault) {
        self.transport.inject(peer, fault);
    }

    fn traffic(&self) -> Traffic {
        self.transport.traffic()
    }

    fn abort_handle(&self) -> Abort {
        self.transport.abort_handle()
    }

    fn activity(&self) -> &Activity {
        self.transport.activity()
    }

    fn close(&mut self) {
        self.transport.close();
    }
}
