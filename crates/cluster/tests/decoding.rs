//! What a stranger, a newer version or a bad cable can send before and beside the data: it is taken for what it is or refused,
//! without a panic and without memory that it only promises to fill.

use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;
use thalweg_cluster::rendezvous::handshake::{PROTOCOL, Purpose, Side, shake};
use thalweg_cluster::rendezvous::message::{
    Answer, Call, Control, Member, Roster, receive, receive_within, send,
};
use thalweg_cluster::rendezvous::timed::Timed;
use thalweg_core::{Error, Kind};

/// Counts what this thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all of it is the system's allocator; what is counted beside it is a number of this thread.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the system's, as above.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.with(|held| {
            held.set(held.get().saturating_add(layout.size()));
            PEAK.with(|peak| peak.set(peak.get().max(held.get())));
        });
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the system's, as above.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.with(|held| held.set(held.get().saturating_sub(layout.size())));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that decoding took beyond what was held before.
fn peak<T>(decode: impl FnOnce() -> T) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    drop(decode());
    PEAK.get() - before
}

/// What short messages may take: a list is given room for a megabyte at most before its elements have come, and a group has
/// several.
const ROOM: usize = 8 << 20;

/// Decodes bytes as everything that ranks say to each other.
fn decode_all(wire: &[u8]) {
    let _ = receive::<Call>(&mut &wire[..]);
    let _ = receive::<Answer>(&mut &wire[..]);
    let _ = receive::<Control>(&mut &wire[..]);
    let _ = receive_within::<[u8; 32]>(&mut &wire[..], 256);
}

/// Behind the right length, so that what is in it is looked at.
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
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(peak(|| decode_all(&bytes)) < ROOM);
        prop_assert!(peak(|| decode_all(&framed(&bytes))) < ROOM);
    }

    /// Numbers that begin with many set bits are long lists and texts to a decoder.
    #[test]
    fn promises_of_long_lists_are_not_believed(kind in 0u8..12, bytes in vec(prop_oneof![Just(0xffu8), Just(0x0f), Just(0x7f), any::<u8>()], 0..200)) {
        let body = [&[kind][..], &bytes].concat();
        let peak = peak(|| decode_all(&framed(&body)));
        prop_assert!(peak < ROOM, "{peak} bytes");
    }

    #[test]
    fn messages_arrive_as_they_were_sent_and_damage_is_survived(
        members in 0usize..20, host in ".{0,30}", damage in vec((any::<usize>(), any::<u8>()), 0..4), cut in any::<usize>(),
    ) {
        let error = Error::new(Kind::RankFailed, host.clone());
        for message in [Control::Roster(Box::new(a_roster(members, &host))), Control::Abort(Box::new(error)), Control::Goodbye] {
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

/// The longest message there may be, full of the shortest elements, takes some times its bytes and no more.
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

/// A listener that is told these bytes after the right beginning, or none.
fn listener_hears(side: Side, bytes: &[u8]) -> (io::Result<()>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    caller.write_all(bytes).unwrap();
    caller.shutdown(Shutdown::Write).unwrap();
    let mut ended = Ok(());
    let peak = peak(|| {
        let patience = Duration::from_secs(60);
        ended = shake(&mut Timed::new(&stream, patience), side, Purpose::Control, b"secret");
    });
    (ended, peak)
}

/// A hello as this version says it, with some fields of another's choice.
fn hello(magic: [u8; 4], protocol: (u16, u16), purpose: u8, nonce: [u8; 32]) -> Vec<u8> {
    let mut wire = Vec::new();
    send(&mut wire, &(magic, protocol, 0u64, purpose, nonce)).unwrap();
    wire
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nobody_gets_through_a_handshake_by_chance(bytes in vec(any::<u8>(), 0..400), known in any::<bool>(), frame in any::<bool>(), nonce in any::<[u8; 32]>()) {
        let beginning = if known { hello(*b"THLW", PROTOCOL, 0, nonce) } else { Vec::new() };
        let bytes = if frame { framed(&bytes) } else { bytes };
        for side in [Side::Caller, Side::Listener] {
            let (ended, peak) = listener_hears(side, &[&beginning[..], &bytes].concat());
            let words = ended.unwrap_err().to_string();
            let refused_at_once = words.contains("speak") || words.contains("wants something else");
            prop_assert!(!(known && refused_at_once), "nothing behind the hello was looked at: {}", words);
            prop_assert!(peak < 64 << 10, "{peak} bytes for one who has proven nothing");
        }
    }

    /// As far as one gets who does not know the token: a proof is looked at, and it is the wrong one.
    #[test]
    fn nobody_guesses_a_proof(proof in any::<[u8; 32]>(), nonce in any::<[u8; 32]>()) {
        for (side, reply) in [(Side::Listener, &[][..]), (Side::Caller, &[1])] {
            let wire = [&hello(*b"THLW", PROTOCOL, 0, nonce)[..], &framed(&[reply, &proof].concat())].concat();
            let words = listener_hears(side, &wire).0.unwrap_err().to_string();
            prop_assert!(words.contains("does not know the token"), "{}", words);
        }
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart(magic in any::<[u8; 4]>(), protocol in any::<(u16, u16)>(), purpose in 0u8..4, nonce in any::<[u8; 32]>()) {
        let (ended, _) = listener_hears(Side::Listener, &hello(magic, protocol, purpose, nonce));
        prop_assert!(ended.is_err());
        let (ended, _) = listener_hears(Side::Listener, &hello(*b"THLW", (900, 901), 0, nonce));
        let words = ended.unwrap_err().to_string();
        prop_assert!(words.contains("protocol 900-901") && words.contains("same version"), "{}", words);
    }
}
