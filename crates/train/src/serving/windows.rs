//! Shared memory between workers and servers of one host: of a worker what it pushes, of a server what all workers pull.
//!
//! Only a small message says that there is something new. A window belongs to one generation of the group, and messages
//! may outlive it: until no message can refer to an earlier window any more, it stays mapped. It is not written then, so
//! its values are the last of that generation: as recent as the message, or more.

use super::part;
use crate::reduction::arena;
use std::ops::Range;
use thalweg_cluster::{Message, MessageTag, Rank, Window, visit_earlier_window};
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, JobSpec, Kind, Result};

/// The windows of this rank, by generation: the last one may be current.
#[derive(Default)]
pub struct Windows {
    all: Vec<Mapped>,
    /// Messages that were received, by the number of their tag; their values could not be read yet.
    unread: Vec<(u32, Message)>,
}

struct Mapped {
    window: Window,
    /// Member ids by rank.
    members: Vec<usize>,
}

impl Windows {
    /// Opens the window of this generation, with room for so many values of this rank, if the job may use shared memory. All
    /// ranks must call it.
    pub(crate) fn open(&mut self, rank: &mut Rank, job: &JobSpec, length: usize) -> Result<()> {
        if !arena::suits(job) {
            return Ok(());
        }
        let opened = rank.world().open_window("values of workers and servers", length)?;
        match opened {
            Ok(window) => self.all.push(Mapped { window, members: rank.member_ids() }),
            Err(_) if !rank.world().has_local_peers() => {}
            Err(reason) if job.exchange.transport == TransportChoice::Shm => {
                let message = format!("no shared memory for gradients and parameters: {reason}");
                return Err(Error::new(Kind::RankFailed, message)
                    .hint("strategy.exchange.transport = \"auto\" would send them as messages"));
            }
            Err(reason) => {
                let message = format!(
                    "no shared memory for gradients and parameters, which are sent as messages: {reason}"
                );
                rank.emit(Event::Notice { level: Level::Warning, message });
            }
        }
        Ok(())
    }

    /// No message refers to windows of earlier generations any more.
    pub fn drop_earlier(&mut self, generation: u32) {
        self.all.retain(|mapped| mapped.window.generation() >= generation);
    }

    /// Whether another rank of this generation reads this one's window, if it has room for so many values.
    pub fn reaches(&self, rank: &Rank, to: usize, length: usize) -> bool {
        let room = |window: &Window| window.length_of(rank.index()).is_some_and(|room| length <= room);
        self.current(rank).is_some_and(|window| window.shares_with(to) && room(window))
    }

    /// Writes values to this rank's window, from this element on, under that version.
    pub fn publish(&mut self, rank: &Rank, start: usize, values: &[f32], version: u64) {
        let generation = rank.generation();
        let current = self.all.iter_mut().find(|mapped| mapped.window.generation() == generation);
        if let Some(mapped) = current.filter(|mapped| mapped.window.own().len() >= start + values.len()) {
            mapped.window.publish(start, values, version);
        }
    }

    /// Appends what a member has published in its window of that generation. Returns the least version of a block; None if
    /// the window is not mapped any more.
    pub fn read(
        &mut self,
        rank: &mut Rank,
        (generation, member): (u32, usize),
        range: Range<usize>,
        into: &mut Vec<u8>,
    ) -> Result<Option<u64>> {
        let found = self.all.iter_mut().find(|mapped| mapped.window.generation() == generation);
        let Some(Mapped { window, members }) = found else { return Ok(None) };
        let Some(from) = members.iter().position(|id| *id == member) else { return Ok(None) };
        // The range comes from a message.
        if window.length_of(from).is_none_or(|length| range.start > range.end || range.end > length) {
            return Err(part::invalid(
                member,
                format!("named elements {range:?}, which its window does not have"),
            ));
        }
        let (before, mut oldest) = (into.len(), u64::MAX);
        into.reserve(size_of::<f32>() * range.len());
        let append = |_: Range<usize>, values: &[f32], version: u64| {
            into.extend_from_slice(bytemuck::cast_slice(values));
            oldest = oldest.min(version);
        };
        if generation == rank.generation() {
            rank.world().visit_window("values", window, from, range, append)?;
        } else if !visit_earlier_window(window, from, range, append) {
            into.truncate(before);
            return Ok(None);
        }
        Ok(Some(oldest))
    }

    /// A message that was received, but not its values.
    pub fn keep_unread(&mut self, tag: MessageTag, message: Message) {
        self.unread.push((tag.number, message));
    }

    pub fn take_unread(&mut self, tag: MessageTag, from: Option<usize>) -> Option<Message> {
        let matches = |(number, message): &(u32, Message)| {
            *number == tag.number && from.is_none_or(|from| message.member == from)
        };
        Some(self.unread.remove(self.unread.iter().position(matches)?).1)
    }

    fn current(&self, rank: &Rank) -> Option<&Window> {
        let generation = rank.generation();
        let mut windows = self.all.iter().map(|mapped| &mapped.window);
        windows.find(|window| window.generation() == generation)
    }
}
