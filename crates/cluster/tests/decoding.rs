//! Decoding of control messages from unauthenticated peers, other versions and damaged links: a message is decoded or
//! refused, without a panic and without allocating what it only claims to contain.

use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;
use thalweg_cluster::rendezvous::handshake::{PROTOCOL, Purpose, Side, handshake};
use thalweg_cluster::rendezvous::message::{
    Control, ControlRequest, ControlResponse, Member, Roster, receive, receive_within, send,
};
use thalweg_cluster::rendezvous::timed::Timed;
use thalweg_core::event::{Heartbeat, WaitsFor};
use thalweg_core::{Error, Kind};

/// Counts the bytes allocated by this thread.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system allocator; the counters are thread-local.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: forwarded to the system allocator.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.with(|held| {
            held.set(held.get().saturating_add(layout.size()));
            PEAK.with(|peak| peak.set(peak.get().max(held.get())));
        });
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: forwarded to the system allocator.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.with(|held| held.set(held.get().saturating_sub(layout.size())));
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak allocation during `decode`, beyond what was allocated before.
fn peak<T>(decode: impl FnOnce() -> T) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    drop(decode());
    PEAK.get() - before
}

/// Limit for short messages: a list preallocates at most a megabyte before its elements arrive, and a roster has several.
const ROOM: usize = 8 << 20;

/// Decodes bytes as every kind of control message.
fn decode_all(wire: &[u8]) {
    let _ = receive::<ControlRequest>(&mut &wire[..]);
    let _ = receive::<ControlResponse>(&mut &wire[..]);
    let _ = receive::<Control>(&mut &wire[..]);
    let _ = receive_within::<[u8; 32]>(&mut &wire[..], 256);
}

/// With the right length in front, so that the body is decoded.
fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

fn a_roster(members: usize, host: &str) -> Roster {
    let member = |rank: usize| Member {
        rank,
        host: host.into(),
        process: 7,
        data: ([127, 0, 0, 1], 4000).into(),
        identity: Some(format!("boot net {host}")),
        launcher: Some(7),
    };
    Roster {
        generation: 3,
        members: (0..members).map(member).collect(),
        joined: (0..members).collect(),
        ..Roster::default()
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(peak(|| decode_all(&bytes)) < ROOM);
        prop_assert!(peak(|| decode_all(&framed(&bytes))) < ROOM);
    }

    /// Varints that begin with many set bits claim long lists and strings.
    #[test]
    fn claimed_lengths_are_not_preallocated(kind in 0u8..12, bytes in vec(prop_oneof![Just(0xffu8), Just(0x0f), Just(0x7f), any::<u8>()], 0..200)) {
        let body = [&[kind][..], &bytes].concat();
        let peak = peak(|| decode_all(&framed(&body)));
        prop_assert!(peak < ROOM, "{peak} bytes");
    }

    #[test]
    fn messages_round_trip_and_damaged_ones_do_not_panic(
        members in 0usize..20, host in ".{0,30}", damage in vec((any::<usize>(), any::<u8>()), 0..4), cut in any::<usize>(),
    ) {
        let error = Error::new(Kind::RankFailed, host.clone());
        let waits_for = Some(WaitsFor::Any((0..members).collect()));
        let heartbeat = Control::Heartbeat(Heartbeat { name: host.clone(), waits_for, ..Heartbeat::default() });
        for message in [Control::Roster(Box::new(a_roster(members, &host))), Control::Abort(Box::new(error)), heartbeat, Control::Goodbye] {
            let mut wire = Vec::new();
            send(&mut wire, &message).unwrap();
            prop_assert_eq!(receive::<Control>(&mut wire.as_slice()).unwrap(), message);
            let length = wire.len();
            damage.iter().for_each(|(at, byte)| wire[at % length] ^= byte);
            prop_assert!(peak(|| decode_all(&wire)) < ROOM);
            prop_assert!(peak(|| decode_all(&wire[..cut % length])) < ROOM);
        }
    }
}

/// The longest allowed message, full of the shortest elements, takes a small multiple of its size.
#[test]
fn the_longest_message_is_bounded() {
    for byte in [0x00u8, 0x01, 0x7f, 0xff] {
        for kind in 0..12 {
            let mut body = vec![byte; 1 << 20];
            body[0] = kind;
            let wire = framed(&body);
            let peak = peak(|| decode_all(&wire));
            assert!(peak < 256 << 20, "{byte}, {kind}: {peak} bytes");
        }
    }
}

/// Runs a handshake against a peer that sends `bytes`; returns its result and the peak allocation.
fn handshake_with(side: Side, bytes: &[u8]) -> (io::Result<()>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    caller.write_all(bytes).unwrap();
    caller.shutdown(Shutdown::Write).unwrap();
    let mut ended = Ok(());
    let peak = peak(|| {
        let timeout = Duration::from_secs(60);
        ended = handshake(&mut Timed::new(&stream, timeout), side, Purpose::Control, b"secret");
    });
    (ended, peak)
}

/// A hello message with the given fields.
fn hello(magic: [u8; 4], protocol: (u16, u16), purpose: u8, nonce: [u8; 32]) -> Vec<u8> {
    let mut wire = Vec::new();
    send(&mut wire, &(magic, protocol, 0u64, purpose, nonce)).unwrap();
    wire
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_bytes_never_pass_a_handshake(bytes in vec(any::<u8>(), 0..400), known in any::<bool>(), frame in any::<bool>(), nonce in any::<[u8; 32]>()) {
        let beginning = if known { hello(*b"THLW", PROTOCOL, 0, nonce) } else { Vec::new() };
        let bytes = if frame { framed(&bytes) } else { bytes };
        for side in [Side::Caller, Side::Listener] {
            let (ended, peak) = handshake_with(side, &[&beginning[..], &bytes].concat());
            let message = ended.unwrap_err().to_string();
            let refused_at_once = message.contains("speak") || message.contains("wants something else");
            prop_assert!(!(known && refused_at_once), "nothing after the hello was decoded: {}", message);
            prop_assert!(peak < 64 << 10, "{peak} bytes for an unauthenticated peer");
        }
    }

    /// A peer without the token gets as far as its proof, which is wrong.
    #[test]
    fn random_proofs_are_refused(proof in any::<[u8; 32]>(), nonce in any::<[u8; 32]>()) {
        for (side, reply) in [(Side::Listener, &[][..]), (Side::Caller, &[1])] {
            let wire = [&hello(*b"THLW", PROTOCOL, 0, nonce)[..], &framed(&[reply, &proof].concat())].concat();
            let message = handshake_with(side, &wire).0.unwrap_err().to_string();
            prop_assert!(message.contains("does not know the token"), "{}", message);
        }
    }

    #[test]
    fn foreign_protocols_and_other_versions_are_distinguished(magic in any::<[u8; 4]>(), protocol in any::<(u16, u16)>(), purpose in 0u8..4, nonce in any::<[u8; 32]>()) {
        let (ended, _) = handshake_with(Side::Listener, &hello(magic, protocol, purpose, nonce));
        prop_assert!(ended.is_err());
        let (ended, _) = handshake_with(Side::Listener, &hello(*b"THLW", (900, 901), 0, nonce));
        let message = ended.unwrap_err().to_string();
        prop_assert!(message.contains("protocol 900-901") && message.contains("same version"), "{}", message);
    }
}
