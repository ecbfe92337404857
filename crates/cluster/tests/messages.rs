//! Messages over losses, joins and generations, in virtual time: between members that stay each arrives once and in order,
//! and those to the lost are returned. A failing seed is named.

use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership::{Limits, MemberPosition};
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_cluster::sim::{Network, SimulatedFault, SimulatedFaultKind};
use thalweg_cluster::{Message, MessageTag, Rank, SendOutcome};
use thalweg_comm::messages::known_bugs;
use thalweg_core::{Result, Rng};

const SEEDS: u64 = 60;

/// Ranks at the start.
const WORLD: usize = 4;

/// Steps of a generation, unless it is interrupted; each takes a millisecond or more.
const STEPS: u64 = 60;

const WINDOW: usize = 1 << 20;

/// Received every other step, and rarely.
const TAGS: [MessageTag; 2] =
    [MessageTag { number: 4, name: "numbers" }, MessageTag { number: 9, name: "rare numbers" }];

/// Numbers of messages by the member id of the other rank and by tag.
type Numbers = BTreeMap<(usize, u32), Vec<u64>>;

/// What one rank knows.
#[derive(Clone, Debug, Default)]
struct Log {
    sent: Numbers,
    got: Numbers,
    undelivered: Numbers,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number))
}

impl Log {
    fn note(&mut self, message: &Message, tag: MessageTag) {
        let number = number(&message.bytes);
        assert!(message.bytes[8..].iter().all(|byte| *byte == number as u8), "a message of several");
        self.got.entry((message.member, tag.number)).or_default().push(number);
    }

    fn send(&mut self, rank: &mut Rank, random: &mut Rng) -> Result<()> {
        let (index, size) = (rank.index(), rank.size());
        let to = (index + 1 + random.below(size as u64 - 1) as usize) % size;
        let tag = TAGS[random.below(2) as usize];
        let numbers = self.sent.entry((rank.member_id_at(to), tag.number)).or_default();
        let next = numbers.len() as u64;
        let mut bytes = next.to_le_bytes().to_vec();
        bytes.resize(8 + [0, 100, 300_000, 500_000][random.below(4) as usize], next as u8);
        if rank.world().send(to, tag, bytes)? == SendOutcome::Queued {
            numbers.push(next);
        }
        Ok(())
    }

    fn receive(&mut self, rank: &mut Rank, tag: MessageTag) -> Result<()> {
        while let Some(message) = rank.world().try_receive_any(tag)? {
            self.note(&message, tag);
        }
        Ok(())
    }

    /// Steps with messages and collectives, up to the end of all messages.
    fn generation(&mut self, rank: &mut Rank) -> Result<()> {
        rank.open_messages(WINDOW);
        for step in 0..STEPS {
            rank.begin_step(step);
            let numbers = [rank.generation().into(), rank.member_id() as u64, step];
            let mut random = rank.random("messages", &numbers);
            if rank.size() > 1 {
                self.send(rank, &mut random)?;
            }
            rank.slow_down(Duration::from_micros(500 + random.below(1000)))?;
            if step % 3 == 0 {
                rank.world().all_reduce("something else", &mut [1.0f32; 1000])?;
            }
            for (tag, every) in TAGS.into_iter().zip([2, 25]) {
                if step % every == 1 {
                    self.receive(rank, tag)?;
                }
            }
        }
        rank.world().flush_messages()?;
        rank.world().barrier("the last message")?;
        TAGS.into_iter().try_for_each(|tag| self.receive(rank, tag))?;
        rank.world().barrier("the end").map(drop)
    }
}

fn program(rank: &mut Rank) -> Result<Log> {
    let mut log = Log::default();
    loop {
        match log.generation(rank) {
            Ok(()) => return Ok(log),
            Err(_) if rank.generation_is_over() => {
                rank.regroup(MemberPosition::default(), false)?;
                for message in rank.take_undelivered() {
                    let numbers = log.undelivered.entry((message.member, message.tag)).or_default();
                    numbers.push(number(&message.bytes));
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// One or two deaths, and a member that joins with the generation after one.
fn faults(seed: u64) -> Vec<SimulatedFault> {
    let mut random = Rng::keyed(seed, "faults", &[]);
    let mut at = |from: u64, to: u64| Duration::from_micros(1000 * from + random.below(1000 * (to - from)));
    let (join, first, second) = (at(1, 20), at(20, 60), at(70, 150));
    let victim = 1 + (seed % (WORLD as u64 - 1)) as usize;
    let mut faults = vec![SimulatedFault::at(first, SimulatedFaultKind::Kill { rank: victim })];
    if seed.is_multiple_of(2) {
        let rank = (victim + 1) % WORLD;
        faults.push(SimulatedFault::at(second, SimulatedFaultKind::Kill { rank }));
    }
    if seed.is_multiple_of(3) {
        faults.push(SimulatedFault::at(join, SimulatedFaultKind::Join { rank: WORLD }));
    }
    faults
}

/// What is wrong with the messages of a run; nothing if each arrived once.
fn violations(seed: u64, program: impl Fn(&mut Rank) -> Result<Log> + Sync) -> Vec<String> {
    let config = MembershipConfig {
        elastic: true,
        limits: Limits { min: 1, max: 9, timeout: Duration::from_secs(30), unit: 1 },
        servers: 0..0,
        step_deadline: Duration::from_secs(4),
        prepare_deadline: Duration::from_secs(60),
        epoch: 0.0,
    };
    let network = Network { bandwidth: 1e8, jitter: 2.0, ..Network::ordinary(WORLD, seed) };
    let faults = faults(seed);
    let (ended, _) = simulate(network, &faults, &config, program);
    let killed = |rank: usize| faults.iter().any(|fault| fault.kind == SimulatedFaultKind::Kill { rank });
    let mut wrong = Vec::new();
    let mut logs = BTreeMap::new();
    for (id, outcome) in ended.into_iter().enumerate() {
        match outcome.result {
            Ok(log) => drop(logs.insert(id, log)),
            Err(error) if !killed(id) => wrong.push(format!("rank {id} failed: {error}")),
            Err(_) => {}
        }
    }
    for (id, log) in &logs {
        for ((from, tag), got) in &log.got {
            let about = format!("from {from} to {id} with tag {tag}");
            if let Some(again) = got.windows(2).find(|pair| pair[1] <= pair[0]) {
                wrong.push(format!("message {} {about} was handed over twice", again[1]));
            }
            if !got.iter().copied().eq(0..got.len() as u64) {
                wrong.push(format!("messages {about} are {got:?}"));
            }
            let sent = logs.get(from).map(|sender| &sender.sent[&(*id, *tag)]);
            if sent.is_some_and(|sent| sent.len() != got.len()) {
                wrong.push(format!("{} of {sent:?} {about} arrived", got.len()));
            }
        }
        for ((to, tag), sent) in &log.sent {
            let got = logs.get(to).is_some_and(|log| log.got.contains_key(&(*id, *tag)));
            if logs.contains_key(to) && !sent.is_empty() && !got {
                wrong.push(format!("no message from {id} to {to} with tag {tag} arrived"));
            }
        }
        for ((to, tag), lost) in &log.undelivered {
            if !killed(*to) || !log.sent[&(*to, *tag)].ends_with(lost) {
                wrong.push(format!("messages {lost:?} from {id} to {to} with tag {tag} were returned"));
            }
        }
    }
    wrong
}

#[test]
fn messages_between_survivors_arrive_once_and_in_order() {
    for seed in 0..SEEDS {
        let wrong = violations(seed, program);
        assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
    }
}

#[test]
fn a_message_that_is_handed_over_twice_is_found() {
    let with_bug = |rank: &mut Rank| {
        known_bugs::repeat_messages();
        program(rank)
    };
    let found = (0..SEEDS).flat_map(|seed| violations(seed, with_bug)).find(|what| what.contains("twice"));
    assert!(found.is_some(), "no seed finds the known bug");
}
