//! Cases with invalid or unexpected frames: they are detected, and their sender is named.

use super::faults::{SHORT_TIMEOUT, receive_byte};
use super::{LONG_TIMEOUT, Mesh, run_collective, run_ranks, tag};
use thalweg_comm::collective::{Collective, all_gather};
use thalweg_comm::transport::{Cause, ForgedFrame, Incoming, Tag, Transport, TransportError};
use thalweg_comm::wire::{Header, MAX_PAYLOAD, tensor};

/// The cause that rank 0 reports for injected bytes from rank 1; the others name rank 1, too.
fn cause_of_injected<M: Mesh>(bytes: &[u8]) -> Cause {
    let (ranks, inject) = M::connect_with_injector(3);
    inject(1, 0, bytes);
    let mut errors = run_ranks(ranks, |mut transport| match transport.rank() {
        0 => Some(receive_byte(&mut transport, 1, 1, LONG_TIMEOUT).expect_err("invalid bytes")),
        1 => {
            let error = receive_byte(&mut transport, 2, 1, LONG_TIMEOUT).expect_err("no rank sends");
            assert_eq!(error.peer, Some(1), "{error}");
            None
        }
        _ => {
            let error = receive_byte(&mut transport, 1, 1, LONG_TIMEOUT).expect_err("no rank sends");
            assert_eq!(error.peer, Some(1), "{error}");
            None
        }
    });
    let error = errors[0].take().expect("rank 0 reports");
    assert_eq!(error.peer, Some(1), "{error}");
    error.cause
}

/// Bytes that are no frame, and a frame that is too large.
pub fn bytes_that_are_no_frame_are_refused<M: Mesh>() {
    let cause = cause_of_injected::<M>(b"GET / HTTP/1.1\r\nHost: a.web.server.example\r\n\r\n");
    assert!(matches!(cause, Cause::Protocol(_)), "{cause}");
    let huge = Header { length: MAX_PAYLOAD as u32 + 1, ..Header::data(tag(1), 0, &[7]) };
    let cause = cause_of_injected::<M>(&huge.encode());
    assert!(matches!(cause, Cause::Protocol(_)), "{cause}");
}

/// A valid header with another payload.
pub fn a_wrong_checksum_is_detected<M: Mesh>() {
    let header = Header::data(tag(1), 0, &[7]).encode();
    assert_eq!(cause_of_injected::<M>(&[&header[..], &[8]].concat()), Cause::Corrupt);
}

/// A valid frame of another generation, operation, group, tensor or chunk: the error says what was expected and
/// received, and whether the sender is in another operation.
pub fn another_operation_is_detected<M: Mesh>() {
    let (generation, operation, group, tensor) = (2, 9, 3, 5);
    for (tag, chunk, other_operation) in [
        (Tag { generation, ..tag(1) }, 0, false),
        (tag(1), 4, false),
        (Tag { operation, ..tag(1) }, 0, true),
        (Tag { group, ..tag(1) }, 4, true),
        (Tag { tensor, ..tag(1) }, 0, true),
    ] {
        let other = Header::data(tag, chunk, &[7]);
        let what = match cause_of_injected::<M>(&[&other.encode()[..], &[7]].concat()) {
            Cause::Protocol(what) if !other_operation => what,
            Cause::OtherOperation(what) if other_operation => what,
            cause => panic!("{cause}"),
        };
        let expected = "expected generation 1, operation 1, group 0, tensor 00000000, chunk 0";
        assert!(what.contains(expected) && what.contains(&format!("got {other}")), "{what}");
    }
}

/// Two ranks reduce different tensors of the same length in one operation: no rank gets a sum of both, whether or not
/// several groups are admitted.
pub fn another_tensor_is_detected<M: Mesh>() {
    for single_group in [true, false] {
        let errors = run_ranks(M::connect(2), |mut transport| {
            if !single_group {
                transport.admit_groups();
            }
            let rank = transport.rank();
            let tag = Tag { tensor: tensor(["gradients of a", "gradients of b"][rank]), ..tag(1) };
            let mut buffer = [1.0f32; 100];
            (
                rank,
                run_collective(&mut transport, tag, Collective::AllReduce, &mut buffer)
                    .expect_err("different tensors"),
            )
        });
        // The second rank may learn of it from the first.
        assert!(
            errors.iter().any(|(rank, error)| error.peer == Some(1 - rank) && is_other_operation(error)),
            "{errors:?}"
        );
        assert!(
            errors
                .iter()
                .all(|(_, error)| is_other_operation(error) || matches!(error.cause, Cause::Reported { .. })),
            "{errors:?}"
        );
    }
}

/// The same for a buffered early frame.
pub fn another_tensor_is_detected_in_early_frames<M: Mesh>() {
    let (mut ranks, inject) = M::connect_with_injector(2);
    let ahead = Header::data(Tag { tensor: 5, ..tag(2) }, 0, &[7]);
    inject(1, 0, &[&ahead.encode()[..], &[7], &Header::data(tag(1), 0, &[7]).encode()[..], &[7]].concat());
    ranks[0].admit_groups();
    assert_eq!(receive_byte(&mut ranks[0], 1, 1, LONG_TIMEOUT), Ok(7), "the frame before it is buffered");
    let error = receive_byte(&mut ranks[0], 1, 2, LONG_TIMEOUT).expect_err("it is of another tensor");
    assert!(is_other_operation(&error) && error.peer == Some(1), "{error}");
}

/// A frame of a group that may exist, with a length that the next frames fill: its sender is named, and not only a rank
/// that is late.
pub fn a_false_length_is_detected<M: Mesh>() {
    let (mut ranks, inject) = M::connect_with_injector(2);
    let mine = Header::data(tag(1), 0, &[7]).encode();
    inject(1, 0, &[&ForgedFrame::Length.encode(tag(1).generation)[..], &mine, &[7]].concat());
    ranks[0].admit_groups();
    let error = receive_byte(&mut ranks[0], 1, 1, SHORT_TIMEOUT).expect_err("it is swallowed");
    assert!(matches!(&error.cause, Cause::Protocol(_)) && error.peer == Some(1), "{error}");
}

fn is_other_operation(error: &TransportError) -> bool {
    matches!(error.cause, Cause::OtherOperation(_))
}

/// Buffers of different lengths in one collective are a protocol error, not a wrong result.
pub fn different_lengths_are_detected<M: Mesh>() {
    let errors = run_ranks(M::connect(2), |mut transport| {
        let mut buffer = vec![0; 10 + transport.rank()];
        run_collective(&mut transport, tag(1), Collective::Broadcast { root: 0 }, &mut buffer).err()
    });
    let error = errors[1].clone().expect("rank 1 notices");
    assert!(matches!(&error.cause, Cause::Protocol(_)) && error.peer == Some(0), "{error}");
}

/// A peer cannot make this rank allocate any amount of memory.
pub fn an_announced_length_is_bounded<M: Mesh>() {
    let (ranks, inject) = M::connect_with_injector(2);
    let length = u64::MAX.to_le_bytes();
    inject(1, 0, &[&Header::data(tag(1), 1, &length).encode()[..], &length].concat());
    run_ranks(ranks, |mut transport| match transport.rank() {
        0 => {
            let error = all_gather(&mut transport, tag(1), b"abc", LONG_TIMEOUT).expect_err("too long");
            assert!(matches!(&error.cause, Cause::Protocol(_)) && error.peer == Some(1), "{error}");
        }
        _ => {
            let mut length = [0; 8];
            let receive = Incoming { from: 0, chunk: 0, bytes: &mut length };
            transport.transfer(tag(1), &[], &mut [receive], LONG_TIMEOUT).expect("the other's length");
            assert_eq!(u64::from_le_bytes(length), 3);
        }
    });
}
