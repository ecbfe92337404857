//! Gradients and parameters in windows: servers read gradients in place, workers copy the parameters.

use super::Roles;
use super::carrier::{Carrier, Rule, Visit, announce, next_announcement};
use std::ops::Range;
use thalweg_cluster::{Rank, Window};
use thalweg_core::{Error, Result};

/// Elements that are read at a time, whole blocks: they are still in a core's cache when they are added up.
const CHUNK: usize = 8 * Window::BLOCK;

pub(super) struct Windows {
    roles: Roles,
    /// Of workers; empty on servers.
    gradients: Window,
    /// Of servers, each its shard; empty on workers.
    parameters: Window,
    /// Pushes so far: the version of the gradient.
    pushes: u64,
}

impl Windows {
    pub(super) fn open(rank: &mut Rank, roles: Roles) -> Result<Windows> {
        let index = rank.index();
        let serves = roles.servers().contains(&index);
        let shard = if serves { roles.shard(index).len() } else { 0 };
        let mut open = |name: &str, length: usize| {
            let opened = rank.world().open_window(name, length)?;
            opened.map_err(|reason| {
                Error::job(format!("--transport shm: {reason}")).hint("use --transport tcp")
            })
        };
        let gradients = open("gradients", if serves { 0 } else { roles.length })?;
        let parameters = open("parameters", shard)?;
        Ok(Windows { roles, gradients, parameters, pushes: 0 })
    }
}

impl Carrier for Windows {
    fn write_gradient(&mut self, write: &mut dyn FnMut(&mut [f32])) {
        self.pushes += 1;
        self.gradients.write(0..self.roles.length, self.pushes, write);
    }

    fn push(&mut self, rank: &mut Rank) -> Result<()> {
        self.roles.servers().try_for_each(|server| announce(rank, server))
    }

    fn next_push(&mut self, rank: &mut Rank) -> Result<(usize, bool)> {
        next_announcement(rank)
    }

    fn add(&mut self, rank: &mut Rank, worker: usize, sum: &mut [f32]) -> Result<()> {
        let start = self.roles.shard(rank.index()).start;
        rank.world().add_window("gradients", &mut self.gradients, worker, start, sum).map(drop)
    }

    fn apply(&mut self, rank: &mut Rank, worker: usize, version: u64, rule: Rule<'_>) -> Result<()> {
        let shard = self.roles.shard(rank.index());
        let (start, parameters) = (shard.start, &mut self.parameters);
        let apply = |piece: Range<usize>, gradient: &[f32], _| {
            let own = piece.start - start..piece.end - start;
            parameters.write_blocks(own, version, |block, elements| {
                let range = block.start + start..block.end + start;
                rule(range.clone(), &gradient[range.start - piece.start..range.end - piece.start], elements);
            });
        };
        rank.world().visit_window("gradients", &mut self.gradients, worker, shard, apply).map(drop)
    }

    fn write_parameters(&mut self, version: u64, write: &mut dyn FnMut(&mut [f32])) {
        self.parameters.write(0..self.parameters.own().len(), version, write);
    }

    fn pull(&mut self, rank: &mut Rank, into: &mut [f32], visit: Visit<'_>) -> Result<()> {
        for server in self.roles.servers() {
            let shard = self.roles.shard(server);
            for start in (0..shard.len()).step_by(CHUNK) {
                let chunk = shard.start + start..shard.end.min(shard.start + start + CHUNK);
                let into = &mut into[chunk.clone()];
                rank.world().read_window("parameters", &mut self.parameters, server, start, into)?;
                for (block, values) in into.chunks(Window::BLOCK).enumerate() {
                    let begin = chunk.start + block * Window::BLOCK;
                    visit(begin..begin + values.len(), values);
                }
            }
        }
        Ok(())
    }

    // The workers know that the parameters are there.
    fn request(&mut self, _: &mut Rank) -> Result<()> {
        Ok(())
    }

    fn await_request(&mut self, _: &mut Rank, _: usize) -> Result<()> {
        Ok(())
    }

    fn serve(&mut self, _: &mut Rank, _: usize) -> Result<()> {
        Ok(())
    }
}
