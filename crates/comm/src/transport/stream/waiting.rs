//! One wait: for events of the links, until a rank is lost or a deadline has passed.

use super::StreamTransport;
use crate::transport::link::LinkSet;
use crate::transport::wait_state::{Interest, WaitMode, WaitState, merge, pending_peers};
use crate::transport::{Transport, TransportError};
use std::time::Duration;

/// The longest sleep of a waiting rank between two checks of its abort handle.
const ABORT_CHECK: Duration = Duration::from_millis(20);

impl<L: LinkSet> StreamTransport<L> {
    /// Fails if the group is broken or the deadline has passed; else waits until another attempt makes sense.
    pub(super) fn wait_or_fail(
        &mut self,
        wait: &mut WaitState,
        wanted: &[Interest],
        moved: bool,
    ) -> Result<(), TransportError> {
        if self.abort.is_aborted() {
            return Err(TransportError::aborted());
        }
        self.counters.count_poll();
        let buffered = !moved && self.buffer_early_frames()?;
        if buffered {
            self.counters.count_move();
        }
        let moved = moved || buffered;
        if !moved && !self.peers.all_connected() {
            // Others may have ended as well by now: check all of them before one is named.
            self.poll_links(wanted, Duration::ZERO);
        }
        let now = self.links.now();
        wait.tick(now);
        wait.observe_group(self.counters.group_progress());
        if moved {
            self.peer_activity.iter_mut().for_each(|activity| activity.stamp(now));
        }
        let peers_changed = self.peers.take_changed();
        if !moved && !peers_changed && !self.peers.all_connected() {
            // Only now that everything sent before a hang-up has been read.
            let unread = |peer: usize| self.inboxes[peer].has_unclaimed_frame();
            let timeout_error = |pending| self.timeout_error(wait, pending);
            if let Some(error) =
                self.peers.diagnose(&pending_peers(wanted), wait.mode(), unread, timeout_error)
            {
                return Err(error);
            }
        }
        if wait.remaining().is_zero() {
            return Err(self.timeout_error(wait, pending_peers(wanted)));
        }
        if moved || peers_changed {
            wait.on_progress();
            self.links.on_progress();
            return Ok(());
        }
        if wait.is_inspection_due() {
            self.check_lengths()?;
        }
        if wait.is_publication_due() {
            self.counters.publish_awaited(wait.mode(), wanted);
        }
        wait.idle = wait.idle.saturating_add(1);
        if !self.links.spin_policy().pause(wait.idle) {
            self.poll_links(wanted, ABORT_CHECK.min(wait.remaining()));
        }
        Ok(())
    }

    /// Buffers unclaimed frames, so that the frames behind them can be read. Returns whether anything moved.
    fn buffer_early_frames(&mut self) -> Result<bool, TransportError> {
        let mut moved = false;
        for peer in self.other_ranks() {
            if !self.inboxes[peer].has_unclaimed_frame() {
                continue;
            }
            let Some(link) = &mut self.links.links()[peer] else { continue };
            let outcome = self.inboxes[peer].buffer_early(link, &mut self.traffic);
            moved |= self.on_read(peer, outcome)?.unwrap_or(false);
        }
        Ok(moved)
    }

    /// Fails if the frame of a peer swallowed the frame that this rank waits for.
    fn check_lengths(&mut self) -> Result<(), TransportError> {
        let mut links = self.links.links().iter_mut().zip(&self.inboxes).enumerate();
        let proof = links.find_map(|(peer, (link, inbox))| {
            Some(TransportError::new(peer, inbox.find_false_length(link.as_mut()?)?))
        });
        proof.map_or(Ok(()), Err)
    }

    /// See [`Transport::poll`].
    pub(super) fn poll_or_fail(&mut self, timeout: Duration) -> Result<(), TransportError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.abort.is_aborted() {
            return Err(TransportError::aborted());
        }
        // Frames of operations not yet posted must not block the messages behind them.
        let buffered = self.buffer_early_frames()?;
        let timeout = if buffered { Duration::ZERO } else { timeout.min(ABORT_CHECK) };
        self.poll_links(&vec![Interest::default(); self.peers.world()], timeout);
        if self.peers.take_changed() || self.peers.all_connected() {
            // What a peer sent before its end is read first.
            return Ok(());
        }
        let unread = |peer: usize| self.inboxes[peer].has_unclaimed_frame();
        let timeout_error = |pending| TransportError::silent(pending, Duration::ZERO);
        // A timeout of another rank says nothing about the peers of this one.
        let error = self.peers.diagnose(&[], WaitMode::All, unread, timeout_error);
        error.filter(|error| !error.cause.is_late()).map_or(Ok(()), Err)
    }

    /// Waits for an event, of the background too, and records peers that ended their streams.
    fn poll_links(&mut self, wanted: &[Interest], timeout: Duration) {
        let mut interests = wanted.to_vec();
        for (interest, overtaking) in interests.iter_mut().zip(&self.overtaking) {
            // Room on the link is for the messages, once these can be sent.
            interest.write &= !overtaking.held;
        }
        merge(&mut interests, &self.background);
        let mut hung_up = std::mem::take(&mut self.hung_up);
        if self.links.wait(&interests, self.peers.connected(), timeout, &mut hung_up).is_err() {
            // The system is out of some resource; no peer is to blame, and the deadline still holds.
            self.links.sleep(Duration::from_millis(1));
        }
        for peer in hung_up.drain(..) {
            self.on_hang_up(peer);
        }
        self.hung_up = hung_up;
    }
}
