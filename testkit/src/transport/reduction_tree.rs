//! Sums whose order of additions is given: the bits do not depend on which rank holds which term.

use super::{LONG_TIMEOUT, Mesh, run_ranks, tag};
use thalweg_comm::collective::reproducible::all_reduce_cost;
use thalweg_comm::collective::{Group, PartialSums, ReductionTree, ReproducibleAllReduce, Term};
use thalweg_comm::transport::Transport;

/// Terms of a sum.
pub const TERMS: usize = 11;

/// Elements behind the terms that every rank contributes itself.
const TAIL: usize = 3;

/// An element of a term, such that the sum depends on the order.
fn element(term: usize, index: usize) -> f32 {
    (index as f32 + 0.1).powi(term as i32 % 5 - 2)
}

/// `t0 + (t1 + (t2 + ...))`, with the terms distributed over two of every three ranks.
pub fn tree(world: usize) -> ReductionTree {
    let mut holders: Vec<usize> = (0..world).filter(|rank| world < 3 || rank % 3 != 1).collect();
    holders.truncate(TERMS);
    let mut tree = ReductionTree::default();
    let mut slots = vec![0; world];
    for term in 0..TERMS {
        let rank = holders[term * holders.len() / TERMS];
        tree.push(Term { rank, slot: slots[rank] });
        slots[rank] += 1;
    }
    (1..TERMS).for_each(|_| tree.add());
    tree
}

/// The layout for terms of this length.
pub fn layout(length: usize) -> PartialSums {
    PartialSums { count: TERMS, length: length + TAIL, head: length }
}

/// Writes a rank's terms into its slots.
pub fn fill(tree: &ReductionTree, layout: PartialSums, rank: usize, memory: &mut [f32]) {
    memory.fill(f32::NAN);
    layout.slice_mut(memory, 0)[layout.head..].fill(1.0 + rank as f32);
    for (index, term) in tree.terms().iter().enumerate().filter(|(_, term)| term.rank == rank) {
        let values = &mut layout.slice_mut(memory, term.slot)[..layout.head];
        values.iter_mut().enumerate().for_each(|(at, value)| *value = element(index, at));
    }
}

/// Asserts that these are the sums of all ranks' terms and tails.
pub fn check(world: usize, layout: PartialSums, sums: &[f32]) {
    for (index, sum) in sums[..layout.head].iter().enumerate() {
        let expected = (0..TERMS).rev().map(|term| element(term, index)).reduce(|sum, term| term + sum);
        assert_eq!(Some(sum.to_bits()), expected.map(f32::to_bits), "{world} ranks, element {index}");
    }
    let tail = (world * (world + 1) / 2) as f32;
    assert!(sums[layout.head..].iter().all(|sum| *sum == tail), "{world} ranks: {:?}", &sums[layout.head..]);
}

/// The same bits on 1 to 9 ranks at the stated cost, also where some ranks hold no term and where there are fewer
/// elements than ranks.
pub fn sums_do_not_depend_on_the_world_size<M: Mesh>() {
    for world in 1..=9 {
        let tree = tree(world);
        run_ranks(M::connect(world), |mut transport| {
            let rank = transport.rank();
            let mut reproducible = ReproducibleAllReduce::new(Group::world(rank, world));
            let (mut sent, mut received) = (0, 0);
            for (operation, length) in [0, 1, 31, 5000, 100].into_iter().enumerate() {
                let layout = layout(length);
                let mut memory = vec![0.0; layout.elements()];
                fill(&tree, layout, rank, &mut memory);
                let tag = tag(1 + operation as u64);
                reproducible
                    .all_reduce(&mut transport, tag, &tree, layout, &mut memory, LONG_TIMEOUT)
                    .expect("an all-reduce");
                check(world, layout, layout.slice(&memory, 0));
                let (traffic, cost) = (transport.traffic(), all_reduce_cost(&tree, layout, rank, world));
                (sent, received) = (sent + cost.bytes_sent, received + cost.bytes_received);
                assert_eq!((traffic.payload_sent, traffic.payload_received), (sent, received), "{length}");
            }
            transport.close();
        });
    }
}
