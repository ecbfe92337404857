//! What only the in-memory transport can show: sends without any buffer, links cut at will.

use std::time::Duration;
use thalweg_comm::transport::{Cause, Fault, Incoming, Outgoing, Transport, mesh};
use thalweg_testkit::transport::{PLENTY, each, tag};

#[test]
fn a_send_without_a_receive_never_ends_well() {
    let mut ranks = mesh(2);
    let sends = [Outgoing { to: 1, chunk: 0, bytes: &[1] }];
    let fault =
        ranks[0].transfer(tag(1), &sends, &mut [], Duration::from_millis(50)).expect_err("no receiver");
    assert_eq!(fault.peer, Some(1));
    assert!(matches!(fault.cause, Cause::Silent { waited } if waited >= Duration::from_millis(50)));
}

#[test]
fn a_cut_link_is_seen_from_both_ends_and_reported_to_the_rest() {
    let ranks = mesh(3);
    let links = ranks[0].links();
    links.cut(0, 1);
    let faults = each(ranks, |mut transport| {
        let from = (transport.rank() + 1) % 3;
        let receive = Incoming { from, chunk: 0, bytes: &mut [0] };
        transport.transfer(tag(1), &[], &mut [receive], PLENTY).expect_err("nobody sends")
    });
    assert_eq!(faults[0], Fault::of(1, Cause::Closed));
    assert_eq!(faults[1], Fault::of(0, Cause::Closed));
    assert!(matches!(faults[2].cause, Cause::Reported { by: 0 | 1 }), "{}", faults[2]);
}

#[test]
fn a_killed_rank_is_named_in_the_middle_of_a_transfer() {
    let mut ranks = mesh(3);
    let links = ranks[0].links();
    let killed = ranks.remove(2);
    let faults = std::thread::scope(|scope| {
        scope.spawn(|| links.kill(2));
        each(ranks, |mut transport| {
            let peer = 1 - transport.rank();
            let receive = Incoming { from: peer, chunk: 0, bytes: &mut [0] };
            transport.transfer(tag(1), &[], &mut [receive], PLENTY).expect_err("nobody sends")
        })
    });
    assert!(faults.iter().all(|fault| fault.peer == Some(2)), "{faults:?}");
    drop(killed);
}
