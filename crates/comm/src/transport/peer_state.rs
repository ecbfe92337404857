//! Connection state of each peer, and what a lost or closed peer means for an operation.
//!
//! A stream ends with a close frame or without. Without one the peer is dead, and every transfer of the group fails
//! as soon as nothing more can be read. With one, its [`CloseReason`] decides. A peer that was done is missed only by
//! ranks that still need it. A peer that lost another rank passes on which one, so that the dead rank is named and
//! not the rank that noticed first. A peer that timed out ends the waits of all others, and each names the peers it
//! waited for itself.

use super::link::is_end_of_stream;
use super::wait_state::WaitMode;
use super::{Cause, TransportError};
use crate::wire::{CloseReason, HEADER, Header};
use std::io;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PeerState {
    Connected,
    Left(CloseReason),
    Lost(Cause),
}

impl PeerState {
    /// The state of a peer whose stream ended, given the bytes that are still unread.
    pub fn after_end(unread: io::Result<Vec<u8>>) -> PeerState {
        let unread = match unread {
            Ok(unread) => unread,
            Err(error) if is_end_of_stream(&error) => return PeerState::Lost(Cause::Closed),
            Err(error) => return PeerState::Lost(Cause::Io(error.to_string())),
        };
        let start = unread.len().checked_sub(HEADER);
        let header = start.and_then(|start| Header::decode(&unread[start..]).ok());
        match header.and_then(|header| header.close_reason()) {
            Some(reason) => PeerState::Left(reason),
            None => PeerState::Lost(Cause::Closed),
        }
    }

    /// Refuses a close frame that names a rank outside of the group: then its sender broke the protocol.
    fn validated(self, world: usize) -> PeerState {
        match self {
            PeerState::Left(CloseReason::Lost(culprit)) if culprit >= world => {
                let text = format!("its close frame names rank {culprit} in a group of {world}");
                PeerState::Lost(Cause::Protocol(text))
            }
            state => state,
        }
    }
}

/// The states of all peers, and which of them changed.
pub(crate) struct PeerTable {
    states: Vec<PeerState>,
    changed: bool,
    /// Kept to avoid an allocation per wait.
    connected: Vec<bool>,
}

impl PeerTable {
    pub fn new(world: usize) -> PeerTable {
        PeerTable { states: vec![PeerState::Connected; world], changed: false, connected: vec![true; world] }
    }

    pub fn world(&self) -> usize {
        self.states.len()
    }

    pub fn is_connected(&self, peer: usize) -> bool {
        self.states[peer] == PeerState::Connected
    }

    pub fn all_connected(&self) -> bool {
        self.states.iter().all(|state| *state == PeerState::Connected)
    }

    /// By rank; the rank itself counts as connected.
    pub fn connected(&mut self) -> &[bool] {
        for (connected, state) in self.connected.iter_mut().zip(&self.states) {
            *connected = *state == PeerState::Connected;
        }
        &self.connected
    }

    pub fn set(&mut self, peer: usize, state: PeerState) {
        let state = state.validated(self.states.len());
        self.changed |= self.states[peer] != state;
        self.states[peer] = state;
    }

    /// Whether a state has changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// See [`diagnose`]. In a wait for any of the pending peers, one that was done is missed only with all others.
    pub fn diagnose(
        &self,
        pending: &[usize],
        mode: WaitMode,
        unread: impl Fn(usize) -> bool,
        timeout_error: impl FnOnce(Vec<usize>) -> TransportError,
    ) -> Option<TransportError> {
        let may_come = mode == WaitMode::Any && pending.iter().any(|peer| self.is_connected(*peer));
        diagnose(&self.states, pending, |peer| may_come || unread(peer), timeout_error)
    }
}

/// The error, if any, of a rank that waits for the `pending` peers and made no progress.
///
/// Observed losses take precedence over reported ones; of several lost peers, one that another rank lost too comes
/// first. A peer that was done is no error while frames of it are `unread`. If another rank timed out, the error is
/// `timeout_error(pending)`.
fn diagnose(
    states: &[PeerState],
    pending: &[usize],
    unread: impl Fn(usize) -> bool,
    timeout_error: impl FnOnce(Vec<usize>) -> TransportError,
) -> Option<TransportError> {
    let mut lost = Vec::new();
    let mut reported = Vec::new();
    let (mut missing, mut aborted, mut timed_out) = (None, Vec::new(), false);
    for (peer, state) in states.iter().enumerate() {
        match state {
            PeerState::Connected => {}
            PeerState::Lost(cause) => lost.push((peer, cause)),
            PeerState::Left(CloseReason::Lost(culprit)) => reported.push((*culprit, peer)),
            PeerState::Left(CloseReason::Aborted) => aborted.push(peer),
            PeerState::Left(CloseReason::TimedOut) => timed_out = true,
            PeerState::Left(CloseReason::Done) if pending.contains(&peer) && !unread(peer) => {
                missing = missing.or(Some(peer))
            }
            PeerState::Left(CloseReason::Done) => {}
        }
    }
    let confirmed = lost.iter().find(|(peer, _)| reported.iter().any(|(culprit, _)| culprit == peer));
    if let Some(&(peer, cause)) = confirmed.or(lost.first()) {
        let suspects = lost.iter().map(|(peer, _)| *peer).collect();
        return Some(TransportError { peer: Some(peer), cause: cause.clone(), suspects });
    }
    if let Some(&(culprit, by)) = reported.first() {
        return Some(TransportError::new(culprit, Cause::Reported { by }));
    }
    if !aborted.is_empty() {
        return Some(TransportError { suspects: aborted, ..TransportError::aborted() });
    }
    if timed_out {
        return Some(timeout_error(pending.to_vec()));
    }
    missing.map(|peer| TransportError::new(peer, Cause::Left))
}

#[cfg(test)]
mod tests {
    use super::PeerState::{Connected, Left, Lost};
    use super::*;
    use std::time::Duration;

    fn timed_out(pending: Vec<usize>) -> TransportError {
        TransportError::silent(pending, Duration::from_millis(7))
    }

    fn blamed(states: &[PeerState]) -> Option<TransportError> {
        diagnose(states, &[1], |_| false, timed_out)
    }

    #[test]
    fn the_last_frame_distinguishes_leaving_from_dying() {
        let close = Header::close(1, CloseReason::Done).encode();
        assert_eq!(PeerState::after_end(Ok([&[1, 2, 3], &close[..]].concat())), Left(CloseReason::Done));
        assert_eq!(PeerState::after_end(Ok(close[1..].to_vec())), Lost(Cause::Closed));
        assert_eq!(PeerState::after_end(Ok(Vec::new())), Lost(Cause::Closed));
        assert_eq!(
            PeerState::after_end(Err(io::ErrorKind::ConnectionReset.into())),
            Lost(Cause::Closed),
            "the process died"
        );
    }

    #[test]
    fn leaving_when_done_is_no_error() {
        assert_eq!(blamed(&[Connected, Connected, Left(CloseReason::Done)]), None);
        let left = [Connected, Left(CloseReason::Done)];
        assert_eq!(blamed(&left), Some(TransportError::new(1, Cause::Left)));
        assert_eq!(diagnose(&left, &[1], |peer| peer == 1, timed_out), None, "it sent all frames before");
    }

    #[test]
    fn lost_peers_come_before_peers_that_closed() {
        let closed = Left(CloseReason::Lost(2));
        assert_eq!(
            blamed(&[Connected, closed.clone(), Connected]),
            Some(TransportError::new(2, Cause::Reported { by: 1 }))
        );
        assert_eq!(
            blamed(&[Connected, closed.clone(), Lost(Cause::Closed)]),
            Some(TransportError::new(2, Cause::Closed))
        );
        let several = [Connected, Lost(Cause::Closed), Lost(Cause::Closed), closed];
        let error = blamed(&several).expect("an error");
        assert_eq!((error.peer, error.suspects), (Some(2), vec![1, 2]));
    }

    #[test]
    fn a_timeout_of_another_rank_names_the_pending_peers() {
        assert_eq!(blamed(&[Connected, Connected, Left(CloseReason::TimedOut)]), Some(timed_out(vec![1])));
        let received = TransportError { suspects: vec![1], ..TransportError::aborted() };
        assert_eq!(blamed(&[Connected, Left(CloseReason::Aborted)]), Some(received));
    }

    #[test]
    fn a_close_frame_with_an_impossible_rank_blames_its_sender() {
        let forged = Left(CloseReason::Lost(u32::MAX as usize - 3)).validated(2);
        let error = blamed(&[Connected, forged]).unwrap();
        assert!(error.peer == Some(1) && matches!(error.cause, Cause::Protocol(_)), "{error}");
        assert_eq!(Left(CloseReason::Lost(0)).validated(2), Left(CloseReason::Lost(0)));
    }
}
