//! Windows between threads: versions, torn reads, lost and silent owners, ranks that share no memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_comm::arena::{OperationContext, Window, WindowRead};
use thalweg_comm::host::{LocalPeers, connect_threads};
use thalweg_comm::transport::{Cause, Traffic, Transport};
use thalweg_testkit::transport::{LONG_TIMEOUT, Memory, Mesh, Shared, run_collective, run_ranks, tag};

const BLOCK: usize = Window::BLOCK;

/// A deadline short enough for a test.
const SHORT: Duration = Duration::from_millis(200);

/// Runs a program on every rank of a group of threads.
fn on_each<M: Mesh, R: Send>(
    world: usize,
    program: impl Fn(&mut M::Transport, &LocalPeers) -> R + Sync,
) -> Vec<R> {
    let peers = connect_threads(world).expect("peers");
    run_ranks(M::connect(world), |mut transport| {
        let peers = &peers[transport.rank()];
        let result = program(&mut transport, peers);
        transport.close();
        result
    })
}

fn context(transport: &mut dyn Transport) -> OperationContext<'_> {
    OperationContext { transport, tag: tag(0), deadline: LONG_TIMEOUT }
}

fn open(transport: &mut dyn Transport, peers: &LocalPeers, length: usize) -> Window {
    Window::open(peers, length, context(transport)).expect("no transport error").expect("memory")
}

fn barrier(transport: &mut dyn Transport, operation: u64) {
    let barrier = thalweg_comm::collective::Collective::Barrier;
    run_collective(transport, tag(operation), barrier, &mut [0u8]).expect("a barrier");
}

fn read(
    window: &mut Window,
    from: usize,
    start: usize,
    length: usize,
    transport: &mut dyn Transport,
) -> (Vec<f32>, Option<u64>) {
    let mut values = vec![f32::NAN; length];
    let versions = window.read(from, start, &mut values, transport, LONG_TIMEOUT).expect("a read");
    (values, versions.agreed())
}

fn lengths_and_ranges<M: Mesh>() {
    on_each::<M, _>(3, |transport, peers| {
        let rank = transport.rank();
        // Every rank chooses its own length; one has none.
        let length = |rank: usize| [0, 5, 2 * BLOCK + 7][rank];
        let mut window = open(transport, peers, length(rank));
        let value = |rank: usize, index: usize| (rank * 100_000 + index) as f32;
        let values: Vec<f32> = (0..length(rank)).map(|index| value(rank, index)).collect();
        for from in (0..3).filter(|from| *from != rank) {
            let (zeros, version) = read(&mut window, from, 0, length(from), transport);
            assert!(zeros.iter().all(|zero| *zero == 0.0));
            assert_eq!(version, Some(0).filter(|_| from > 0));
        }
        barrier(transport, 1);
        window.publish(0, &values, 7);
        assert_eq!(window.own(), values);
        barrier(transport, 2);
        for from in (0..3).filter(|from| *from != rank) {
            assert!(window.shares_with(from));
            assert_eq!(window.length_of(from), Some(length(from)));
            for range in [0..length(from), 2..length(from).clamp(2, 4), length(from) / 3..length(from)] {
                if range.end > length(from) {
                    continue;
                }
                let (read, version) = read(&mut window, from, range.start, range.len(), transport);
                assert!(read.iter().zip(range.clone()).all(|(read, index)| *read == value(from, index)));
                assert_eq!(version, Some(7).filter(|_| !range.is_empty()));
                let (mut shown, visit) = (Vec::new(), WindowRead::new(from, range.clone()));
                assert!(window.try_visit(&mut visit.clone(), |piece, values, version| {
                    assert_eq!((piece.len(), version), (values.len(), 7));
                    shown.extend(piece.zip(values.iter().copied()));
                }));
                assert!(shown.into_iter().eq(range.map(|index| (index, value(from, index)))));
            }
        }
        barrier(transport, 3);
    });
}

#[test]
fn every_rank_reads_any_range_of_the_others() {
    lengths_and_ranges::<Shared>();
}

#[test]
fn windows_work_whatever_wakes_the_ranks() {
    lengths_and_ranges::<Memory>();
}

#[test]
fn versions_are_those_of_the_blocks() {
    on_each::<Shared, _>(2, |transport, peers| {
        let mut window = open(transport, peers, 3 * BLOCK);
        if transport.rank() == 0 {
            window.publish(0, &vec![1.0; 3 * BLOCK], 1);
            window.write(BLOCK..2 * BLOCK, 5, |values| values.fill(5.0));
            window.publish(2 * BLOCK + 3, &[4.0], 4);
        }
        barrier(transport, 1);
        if transport.rank() == 1 {
            let mut all = vec![0.0; 3 * BLOCK];
            let versions = window.read(0, 0, &mut all, transport, LONG_TIMEOUT).expect("a read");
            assert_eq!((versions.agreed(), versions.oldest(), versions.newest()), (None, Some(1), Some(5)));
            assert_eq!((all[0], all[BLOCK], all[2 * BLOCK], all[2 * BLOCK + 3]), (1.0, 5.0, 1.0, 4.0));
            let mut seen = Vec::new();
            let visit = |_, _: &[f32], version| seen.push(version);
            window.visit(0, 0..3 * BLOCK, visit, transport, LONG_TIMEOUT).expect("a read");
            assert_eq!(seen, [1, 5, 4]);
        }
        barrier(transport, 2);
    });
}

/// Sets the flag, also when a reader fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The owner rewrites all blocks as fast as it can, in each of its three ways; all elements of a block are the version.
#[test]
fn a_block_is_never_torn() {
    const LENGTH: usize = 3 * BLOCK + 100;
    const READS: usize = 300;
    let done = AtomicBool::new(false);
    let seen = on_each::<Shared, _>(3, |transport, peers| {
        let mut window = open(transport, peers, LENGTH);
        if transport.rank() == 0 {
            let mut version = 1;
            window.publish(0, &[1.0; LENGTH], version);
            barrier(transport, 1);
            while !done.load(Ordering::Relaxed) {
                version += 1;
                let value = version as f32;
                match version % 3 {
                    0 => window.publish(0, &vec![value; LENGTH], version),
                    1 => window.write(0..LENGTH, version, |values| values.fill(value)),
                    _ => window.write_blocks(0..LENGTH, version, |_, values| values.fill(value)),
                }
            }
            barrier(transport, 2);
            return version;
        }
        barrier(transport, 1);
        // The owner stops when the first reader has read enough, or has failed; the other one then reads what stays.
        let stop = StopOnDrop(&done);
        let mut last = [1; LENGTH.div_ceil(BLOCK)];
        let mut sum = vec![0.0; LENGTH];
        for _ in 0..READS {
            let visit = |piece: std::ops::Range<usize>, values: &[f32], version: u64| {
                assert!(values.iter().all(|value| *value == version as f32), "torn at {version}");
                let last = &mut last[piece.start / BLOCK];
                assert!(version >= *last, "version {version} after {last}");
                *last = version;
                sum[piece].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            };
            window.visit(0, 0..LENGTH, visit, transport, LONG_TIMEOUT).expect("a read");
            let (values, agreed) = read(&mut window, 0, 0, LENGTH, transport);
            if let Some(version) = agreed {
                assert!(values.iter().all(|value| *value == version as f32), "torn at {version}");
            }
            for block in values.chunks(BLOCK) {
                assert!(block.iter().all(|value| *value == block[0]), "a torn block");
            }
        }
        drop(stop);
        barrier(transport, 2);
        last[0]
    });
    assert!(
        seen[1..].iter().all(|version| *version <= seen[0]),
        "versions that were never written: {seen:?}"
    );
}

#[test]
fn an_owner_that_does_not_finish_is_named_at_the_deadline() {
    let errors = on_each::<Shared, _>(3, |transport, peers| {
        let mut window = open(transport, peers, 2 * BLOCK);
        if transport.rank() == 0 {
            // It waits for a frame that never comes, in the middle of a publication.
            return window.write(BLOCK..BLOCK + 1, 1, |_| {
                barrier(transport, 1);
                let mut never = [0];
                let never = thalweg_comm::Incoming { from: 1, chunk: 0, bytes: &mut never };
                transport.transfer(tag(9), &[], &mut [never], LONG_TIMEOUT).err()
            });
        }
        barrier(transport, 1);
        let (mut one, mut two) = ([0.0; 1], vec![0.0; BLOCK + 1]);
        window.read(0, 0, &mut one, transport, SHORT).expect("another block");
        window.read(0, 0, &mut two, transport, SHORT).err()
    });
    for error in errors[1..].iter().flatten() {
        assert_eq!((error.peer, &error.suspects[..]), (Some(0), &[0][..]), "{error}");
        assert!(error.cause.is_late(), "{error}");
    }
    assert!(errors[1].is_some() || errors[2].is_some());
}

#[test]
fn an_owner_that_dies_while_it_writes_is_named_and_what_it_published_stays() {
    let errors = on_each::<Shared, _>(2, |transport, peers| {
        let mut window = open(transport, peers, 2 * BLOCK);
        if transport.rank() == 0 {
            window.publish(0, &vec![3.0; BLOCK], 3);
            let died = catch_unwind(AssertUnwindSafe(|| {
                window.write(BLOCK..2 * BLOCK, 4, |values| {
                    values[0] = 4.0;
                    barrier(transport, 1);
                    // The rank ends without a close frame: its transport is dropped, and the caller closes a fresh one.
                    drop(std::mem::replace(transport, Shared::connect(2).swap_remove(0)));
                    std::panic::resume_unwind(Box::new(()));
                });
            }));
            assert!(died.is_err());
            return None;
        }
        barrier(transport, 1);
        assert_eq!(read(&mut window, 0, 0, BLOCK, transport), (vec![3.0; BLOCK], Some(3)));
        window.read(0, BLOCK, &mut [0.0], transport, LONG_TIMEOUT).err()
    });
    let error = errors[1].as_ref().expect("the block is not published");
    assert_eq!((error.peer, &error.cause), (Some(0), &Cause::Closed), "{error}");
}

#[test]
fn bytes_are_counted_on_both_sides() {
    let counted = on_each::<Shared, _>(3, |transport, peers| {
        let rank = transport.rank();
        let mut window = open(transport, peers, 1000);
        let traffic = window.traffic();
        if rank > 0 {
            read(&mut window, 0, 0, 1000, transport);
            read(&mut window, 3 - rank, 10, 5, transport);
        }
        barrier(transport, 1);
        drop(window);
        traffic.total()
    });
    let counts =
        |payload_sent, payload_received| Traffic { payload_sent, payload_received, ..Traffic::default() };
    assert_eq!(counted, [counts(8000, 0), counts(20, 4020), counts(20, 4020)]);
}

#[test]
fn ranks_that_share_no_memory_are_told_so_and_the_others_share() {
    on_each::<Shared, _>(3, |transport, peers| {
        let rank = transport.rank();
        let apart: LocalPeers = vec![None; 3];
        let why = Window::open(&apart, 10, context(transport)).expect("no transport error").err();
        assert_eq!(why.as_deref(), Some("no two ranks share memory"));
        let mut two = peers.clone();
        (0..3).filter(|peer| (*peer == 2) != (rank == 2)).for_each(|far| two[far] = None);
        match Window::open(&two, 10, context(transport)).expect("no transport error") {
            Ok(mut window) => {
                assert!(rank < 2 && window.shares_with(1 - rank) && !window.shares_with(2));
                assert_eq!((window.length_of(2), window.length_of(rank)), (None, Some(10)));
                window.publish(0, &[1.0], 1);
                barrier(transport, 1);
                assert_eq!(read(&mut window, 1 - rank, 0, 2, transport), (vec![1.0, 0.0], Some(1)));
            }
            Err(why) => {
                assert_eq!((rank, &why[..]), (2, "no other rank shares memory with rank 2"));
                barrier(transport, 1);
            }
        }
        barrier(transport, 2);
    });
}

#[test]
fn a_rank_without_memory_is_named_and_the_group_remains_usable() {
    on_each::<Shared, _>(3, |transport, peers| {
        let rank = transport.rank();
        let length = if rank == 1 { usize::MAX } else { 10 };
        let why = Window::open(peers, length, context(transport)).expect("no transport error");
        assert!(why.err().expect("too much").starts_with("rank 0: "), "all ranks of the host count it");
        let mut window = open(transport, peers, 10);
        window.publish(0, &[rank as f32; 10], 1);
        barrier(transport, 1);
        assert_eq!(read(&mut window, (rank + 1) % 3, 9, 1, transport).0, [((rank + 1) % 3) as f32]);
        barrier(transport, 2);
    });
}

#[test]
fn a_wait_for_an_owner_ends_with_the_group() {
    let errors = on_each::<Shared, _>(2, |transport, peers| {
        let mut window = open(transport, peers, 1);
        if transport.rank() == 0 {
            return window.write(0..1, 1, |_| {
                barrier(transport, 1);
                let mut never = [0];
                let never = thalweg_comm::Incoming { from: 1, chunk: 0, bytes: &mut never };
                transport.transfer(tag(9), &[], &mut [never], LONG_TIMEOUT).err()
            });
        }
        barrier(transport, 1);
        let abort = transport.abort_handle();
        std::thread::scope(|scope| {
            scope.spawn(|| abort.abort());
            window.read(0, 0, &mut [0.0], transport, LONG_TIMEOUT).err()
        })
    });
    assert!(errors.iter().flatten().all(|error| error.cause == Cause::Aborted), "{errors:?}");
    assert!(errors.iter().all(Option::is_some));
}
