//! Properties of the in-memory transport only: sends without buffering, and cut links.

use std::time::Duration;
use thalweg_comm::transport::{Cause, Incoming, Outgoing, Transport, TransportError, mesh};
use thalweg_testkit::transport::{LONG_TIMEOUT, run_ranks, tag};

#[test]
fn a_send_without_a_receive_times_out() {
    let mut ranks = mesh(2);
    let sends = [Outgoing { to: 1, chunk: 0, bytes: &[1] }];
    let error =
        ranks[0].transfer(tag(1), &sends, &mut [], Duration::from_millis(50)).expect_err("no receiver");
    assert_eq!(error.peer, Some(1));
    assert!(matches!(error.cause, Cause::Silent { waited } if waited >= Duration::from_millis(50)));
}

#[test]
fn a_cut_link_is_detected_at_both_ends_and_reported_to_the_rest() {
    let ranks = mesh(3);
    let links = ranks[0].link_control();
    links.cut(0, 1);
    let errors = run_ranks(ranks, |mut transport| {
        let from = (transport.rank() + 1) % 3;
        let receive = Incoming { from, chunk: 0, bytes: &mut [0] };
        transport.transfer(tag(1), &[], &mut [receive], LONG_TIMEOUT).expect_err("no rank sends")
    });
    assert_eq!(errors[0], TransportError::new(1, Cause::Closed));
    assert_eq!(errors[1], TransportError::new(0, Cause::Closed));
    assert!(matches!(errors[2].cause, Cause::Reported { by: 0 | 1 }), "{}", errors[2]);
}

#[test]
fn a_killed_rank_is_named_in_the_middle_of_a_transfer() {
    let mut ranks = mesh(3);
    let links = ranks[0].link_control();
    let killed = ranks.remove(2);
    let errors = std::thread::scope(|scope| {
        scope.spawn(|| links.kill(2));
        run_ranks(ranks, |mut transport| {
            let peer = 1 - transport.rank();
            let receive = Incoming { from: peer, chunk: 0, bytes: &mut [0] };
            transport.transfer(tag(1), &[], &mut [receive], LONG_TIMEOUT).expect_err("no rank sends")
        })
    });
    assert!(errors.iter().all(|error| error.peer == Some(2)), "{errors:?}");
    drop(killed);
}
