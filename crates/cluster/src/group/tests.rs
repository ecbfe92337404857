use super::*;
use crate::engine::simulated::simulate;
use crate::engine::threads;
use crate::membership_policy::MembershipConfig;
use thalweg_comm::collective::{Max, Min, Term};
use thalweg_comm::transport::sim::Network;

/// Every collective of a group, with several element types and operators.
fn every_collective(group: &mut Group) -> Result<()> {
    let (index, size) = (group.index(), group.size());
    let total = (size * (size + 1) / 2) as u64;
    let mut counts = vec![index as u64 + 1; 7];
    group.all_reduce("counts", &mut counts)?;
    assert_eq!(counts, vec![total; 7]);
    let mut values = [1.0 + index as f32; 9];
    group.all_reduce_during("work", "values", &mut values)?;
    assert_eq!(values, [total as f32; 9]);
    let mut extremes = [index as f64, -(index as f64)];
    group.collective(Collective::AllReduce, "extremes", &mut extremes, &Max)?;
    assert_eq!(extremes, [size as f64 - 1.0, 0.0]);
    let mut least = [index as i32 - 3];
    group.collective(Collective::Reduce { root: size - 1 }, "least", &mut least, &Min)?;
    assert!(index + 1 < size || least == [-3]);
    let either = |mine: &mut [u8], theirs: &[u8]| mine.iter_mut().zip(theirs).for_each(|(a, b)| *a |= b);
    let mut bits = vec![1u8 << index; 5];
    group.collective(Collective::ReduceScatter, "bits", &mut bits, &either)?;
    let chunk = group.own_chunk(5);
    assert!(bits[chunk.clone()].iter().all(|bits| *bits == ((1u16 << size) - 1) as u8));
    let mut owners = vec![0u32; 5];
    owners[chunk].fill(index as u32);
    group.collective(Collective::AllGather, "owners", &mut owners, &Sum)?;
    assert!(owners.is_sorted() && owners[0] == 0);
    let mut chunks = vec![index as f32; 3 * size];
    group.collective(Collective::AllToAll, "chunks", &mut chunks, &Sum)?;
    assert!(chunks.iter().enumerate().all(|(at, from)| at / 3 == *from as usize));
    let pieces: Vec<Vec<u32>> = (0..size).map(|to| vec![index as u32; to + 2 * index]).collect();
    let arrived = group.all_to_all("pieces", &pieces)?;
    assert!((0..size).all(|from| arrived[from] == vec![from as u32; index + 2 * from]));
    let root = size / 2;
    let mut values = vec![index as f32; 3];
    group.broadcast_into("values", root, &mut values)?;
    assert_eq!(values, [root as f32; 3]);
    assert_eq!(group.broadcast("bytes", root, vec![index as u8])?, [root as u8]);
    let unknown = group.broadcast_into("values", size, &mut values).unwrap_err();
    assert!(unknown.message.contains(&format!("no rank {size} in a group of {size}")), "{unknown}");
    assert_eq!(group.all_gather("names", &vec![index as u8; index])?[size - 1].len(), size - 1);
    let gathered = group.gather("names", root, &vec![index as u8; index])?;
    let expected: Vec<Vec<u8>> = (0..size).map(|rank| vec![rank as u8; rank]).collect();
    assert_eq!(gathered, if index == root { expected } else { Vec::new() });
    group.compare("digest", b"equal")?;
    let pending = group.start(Collective::AllReduce, "started", vec![index as f32; 3000], Max)?;
    group.barrier("the end")?;
    assert_eq!(group.rank.finish(pending)?, vec![size as f32 - 1.0; 3000]);
    exchange_with_neighbours(group)?;
    all_reduce_tree(group)
}

/// Each member sends two pieces to the next one and receives two from the one before.
fn exchange_with_neighbours(group: &mut Group) -> Result<()> {
    let (index, size) = (group.index(), group.size());
    if size == 1 {
        return Ok(());
    }
    let (next, before, mine) = ((index + 1) % size, (index + size - 1) % size, [index as f32; 2]);
    let (mut first, mut second) = ([0.0; 2], [0.0]);
    let mut receives = [(before, &mut first[..]), (before, &mut second[..])];
    group.exchange("transfer", "pieces", &[(next, &mine), (next, &mine[..1])], &mut receives)?;
    assert_eq!((first, second), ([before as f32; 2], [before as f32]));
    let unknown = group.exchange("transfer", "pieces", &[(size, &mine)], &mut []).unwrap_err();
    assert!(unknown.message.contains(&format!("no rank {size} in a group of {size}")), "{unknown}");
    Ok(())
}

/// Seven terms, held by the members in turns.
fn all_reduce_tree(group: &mut Group) -> Result<()> {
    let (index, size) = (group.index(), group.size());
    let mut tree = ReductionTree::default();
    for term in 0..7 {
        tree.push(Term { rank: term % size, slot: term / size });
        if term > 0 {
            tree.add();
        }
    }
    let slots = PartialSums { count: 7, length: 10, head: 10 };
    let mut memory = vec![0.0; slots.elements()];
    for (number, term) in tree.terms().iter().enumerate().filter(|(_, term)| term.rank == index) {
        slots.slice_mut(&mut memory, term.slot).fill(1.0 + number as f32);
    }
    group.all_reduce_tree("terms", &tree, slots, &mut memory)?;
    assert!(size == 1 || slots.slice(&memory, 0).iter().all(|sum| *sum == 28.0));
    Ok(())
}

fn run_everywhere(world: usize, program: fn(&mut Rank) -> Result<()>) {
    for ended in threads::run(world, 0, program) {
        assert_eq!(ended.result, Ok(()));
    }
    let network = Network::ordinary(world, 1);
    for ended in simulate(network, &[], &MembershipConfig::fixed(Duration::from_secs(30)), program).0 {
        assert_eq!(ended.result, Ok(()));
    }
}

#[test]
fn every_collective_works_on_the_world() {
    for world in [1, 2, 3, 5, 8] {
        run_everywhere(world, |rank| every_collective(&mut rank.world()));
    }
}

#[test]
fn every_collective_works_on_smaller_groups() {
    for world in [1, 2, 3, 5, 8] {
        run_everywhere(world, |rank| {
            // Each rank is in one of two groups that differ in size, and the last rank is also in a group of one.
            let (index, size) = (rank.index(), rank.size());
            let (name, rest) = if index % 3 == 0 { ("thirds", true) } else { ("others", false) };
            let members: Vec<usize> = (0..size).filter(|index| (index % 3 == 0) == rest).collect();
            let mut group = rank.new_group(name, &members)?;
            every_collective(&mut rank.group(&mut group))?;
            assert_eq!(rank.group(&mut group).ranks(), members);
            if index + 1 == size {
                let mut alone = rank.new_group("alone", &[index])?;
                every_collective(&mut rank.group(&mut alone))?;
            }
            rank.world().barrier("the end").map(|_| ())
        });
    }
}

#[test]
fn operations_of_the_world_fail_on_smaller_groups() {
    for ended in threads::run(3, 0, |rank| {
        if rank.index() < 2 {
            let mut pair = rank.new_group("pair", &[0, 1])?;
            let mut pair = rank.group(&mut pair);
            pair.set_allreduce_algorithm(AllReduceMethod::Native, 0);
            let native = pair.all_reduce("values", &mut [1.0f32]).unwrap_err();
            let arena = pair.open_arena("arena", PartialSums::one(4), 1).map(|_| ()).unwrap_err();
            let shared = pair.agree_on_shared_memory().unwrap_err();
            for error in [native, arena, shared] {
                assert!(error.message.contains("needs the world, not group \"pair\""), "{error}");
            }
        }
        rank.world().barrier("the end").map(|_| ())
    }) {
        assert_eq!(ended.result, Ok(()));
    }
}

#[test]
fn another_digest_names_the_member() {
    for ended in threads::run(4, 0, |rank| {
        if rank.index() > 0 {
            let mut group = rank.new_group("last", &[1, 2, 3])?;
            let digest = [u8::from(rank.index() == 2)];
            let error = rank.group(&mut group).compare("digest", &digest).unwrap_err();
            assert_eq!(error.message, "rank 2 has another digest than rank 1");
        }
        rank.world().barrier("the end").map(|_| ())
    }) {
        assert_eq!(ended.result, Ok(()));
    }
}

#[test]
fn all_reduces_of_different_tensors_fail() {
    for ended in threads::run(2, 0, |rank| {
        rank.world().barrier("the start")?;
        let name = ["means", "gradients"][rank.index()];
        rank.world().all_reduce(name, &mut [1.0f32; 10]).map(|_| ())
    }) {
        let error = ended.result.unwrap_err();
        let mismatch = error.message.contains("is in another operation") && error.hint.is_some();
        assert!(mismatch || error.message.contains("reported lost by rank"), "{error}");
    }
}
