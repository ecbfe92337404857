//! Sums whose brackets are given: whoever holds the terms, the bits are the same.

use super::{Mesh, PLENTY, each, tag};
use thalweg_comm::collective::bracketed::all_reduce_cost;
use thalweg_comm::collective::{Bracketed, Brackets, Slots, Term};
use thalweg_comm::transport::Transport;

/// Terms of a sum, and the elements behind them by which every rank says something for itself.
pub const TERMS: usize = 11;
const BEHIND: usize = 3;

/// A term's element: the sum depends on the order.
fn element(term: usize, index: usize) -> f32 {
    (index as f32 + 0.1).powi(term as i32 % 5 - 2)
}

/// `t0 + (t1 + (t2 + ...))`, with terms dealt out to the ranks by twos, to every third rank none.
pub fn brackets(world: usize) -> Brackets {
    let mut holders: Vec<usize> = (0..world).filter(|rank| world < 3 || rank % 3 != 1).collect();
    holders.truncate(TERMS);
    let mut brackets = Brackets::default();
    let mut slots = vec![0; world];
    for term in 0..TERMS {
        let rank = holders[term * holders.len() / TERMS];
        brackets.take(Term { rank, slot: slots[rank] });
        slots[rank] += 1;
    }
    (1..TERMS).for_each(|_| brackets.add());
    brackets
}

/// Slots for terms of that length.
pub fn slots(length: usize) -> Slots {
    Slots { count: TERMS, length: length + BEHIND, head: length }
}

/// Writes a rank's terms into its slots.
pub fn fill(brackets: &Brackets, slots: Slots, rank: usize, memory: &mut [f32]) {
    memory.fill(f32::NAN);
    slots.of_mut(memory, 0)[slots.head..].fill(1.0 + rank as f32);
    for (number, term) in brackets.terms().iter().enumerate().filter(|(_, term)| term.rank == rank) {
        let values = &mut slots.of_mut(memory, term.slot)[..slots.head];
        values.iter_mut().enumerate().for_each(|(index, value)| *value = element(number, index));
    }
}

/// Whether these are the sums of all ranks' terms and words.
pub fn check(world: usize, slots: Slots, sums: &[f32]) {
    for (index, sum) in sums[..slots.head].iter().enumerate() {
        let expected = (0..TERMS).rev().map(|term| element(term, index)).reduce(|sum, term| term + sum);
        assert_eq!(Some(sum.to_bits()), expected.map(f32::to_bits), "{world} ranks, element {index}");
    }
    let words = (world * (world + 1) / 2) as f32;
    assert!(sums[slots.head..].iter().all(|sum| *sum == words), "{world} ranks: {:?}", &sums[slots.head..]);
}

/// The same bits on 1 to 9 ranks at the stated cost, also where some hold no term and where there are fewer elements than
/// ranks.
pub fn brackets_do_not_depend_on_the_world<M: Mesh>() {
    for world in 1..=9 {
        let brackets = brackets(world);
        each(M::connect(world), |mut transport| {
            let (rank, mut bracketed) = (transport.rank(), Bracketed::default());
            let (mut sent, mut received) = (0, 0);
            for (operation, length) in [0, 1, 31, 5000, 100].into_iter().enumerate() {
                let slots = slots(length);
                let mut memory = vec![0.0; slots.elements()];
                fill(&brackets, slots, rank, &mut memory);
                let tag = tag(1 + operation as u64);
                bracketed
                    .all_reduce(&mut transport, tag, &brackets, slots, &mut memory, PLENTY)
                    .expect("an all-reduce");
                check(world, slots, slots.of(&memory, 0));
                let (traffic, cost) = (transport.traffic(), all_reduce_cost(&brackets, slots, rank, world));
                (sent, received) = (sent + cost.bytes_sent, received + cost.bytes_received);
                assert_eq!((traffic.payload_sent, traffic.payload_received), (sent, received), "{length}");
            }
            transport.close();
        });
    }
}
