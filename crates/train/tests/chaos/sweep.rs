//! Runs a strategy from many seeds, each with faults of its own, and reports what all of them did and which of them failed.

use crate::invariants::{self, Bounds, Figures, Undisturbed};
use crate::job::{self, Run};
use crate::schedule::{self, Schedule};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};
use thalweg_core::JobSpec;
use thalweg_core::event::Event;

/// Seeds that run at a time. The ranks of one run take turns.
const THREADS: usize = 2;

/// What is run, and what has to hold.
pub struct Sweep {
    /// A name of the test that repeats a seed.
    test: &'static str,
    jobs: Jobs,
    bounds: Bounds,
    /// How much longer than the latency a message may take, as a multiple of it.
    jitter: f64,
    pub undisturbed: Undisturbed,
}

/// The jobs of groups of every size.
enum Jobs {
    Same(&'static JobSpec),
    /// So many of the last ranks serve, whatever the number of ranks; no fault strikes them.
    Served(usize, BTreeMap<usize, &'static JobSpec>),
}

/// The most ranks that a schedule begins with, without servers.
const MAX_WORKERS: usize = 7;

/// Messages take up to 15 ms, several steps, so that those of one rank overtake those of another.
const LATE: f64 = 30.0;

/// Steps of the job.
const STEPS: u32 = 60;

/// What the seeds did.
pub struct Summary {
    pub count: u64,
    figures: Vec<Figures>,
    failed: Vec<String>,
}

impl Sweep {
    pub fn new(test: &'static str, job: &'static JobSpec, bounds: Bounds) -> Sweep {
        let (jitter, undisturbed) =
            (job::network(4, 0).jitter, Undisturbed::of(&job::run_job(job, 0, 4, &[], || ())));
        Sweep { test, jobs: Jobs::Same(job), bounds, jitter, undisturbed }
    }

    /// With messages that come late and in another order. They change no result without faults, or little.
    pub fn with_late_messages(self) -> Sweep {
        Sweep { jitter: LATE, ..self }
    }

    /// The same of a strategy with a server, beside as many workers as others have ranks.
    pub fn with_server(test: &'static str, settings: &[&str], bounds: Bounds) -> Sweep {
        Sweep::with_servers(test, settings, 1, bounds)
    }

    /// The same with several servers, as many as the settings say.
    pub fn with_servers(test: &'static str, settings: &[&str], servers: usize, bounds: Bounds) -> Sweep {
        let job = |workers: usize| job::job(&[settings, &[&*format!("engine.workers={workers}")]].concat());
        let jobs: BTreeMap<_, _> =
            (1..=MAX_WORKERS).map(|workers| (workers + servers, job(workers))).collect();
        let world = 4 + servers;
        let undisturbed = Undisturbed::of(&job::run_job(jobs[&world], 0, world, &[], || ()));
        let jitter = job::network(world, 0).jitter;
        Sweep { test, jobs: Jobs::Served(servers, jobs), bounds, jitter, undisturbed }
    }

    fn job(&self, world: usize) -> &'static JobSpec {
        match &self.jobs {
            Jobs::Same(job) => job,
            Jobs::Served(_, jobs) => jobs[&world],
        }
    }

    fn draw(&self, seed: u64) -> Schedule {
        let schedule = Schedule::draw(seed, self.undisturbed.duration);
        match &self.jobs {
            Jobs::Same(_) => schedule,
            Jobs::Served(servers, _) => (0..*servers).fold(schedule, |schedule, _| schedule.with_server()),
        }
    }

    /// Models are compared with those of other groups without a loss, too: of these sizes, whole to the end, or until all
    /// but one rank leave in good order, at as many moments of the run, or another one joins, at each of its steps.
    pub fn with_groups(self, sizes: RangeInclusive<usize>, moments: u32) -> Sweep {
        let span = self.undisturbed.duration;
        let at = |moment: u32, of: u32| schedule::MEETING + span * moment / of;
        let mut undisturbed = self.undisturbed;
        for world in sizes {
            let leave = |at, rank| SimulatedFault::at(at, SimulatedFaultKind::Leave { rank });
            let all_but =
                |stays, at| (0..world).filter(move |rank| *rank != stays).map(move |rank| leave(at, rank));
            let leaves = (0..moments)
                .flat_map(|moment| (0..world).map(move |stays| all_but(stays, at(moment, moments)).collect()))
                .filter(|leaves: &Vec<SimulatedFault>| !leaves.is_empty());
            let join = |step| SimulatedFault::at(at(step, STEPS), SimulatedFaultKind::Join { rank: world });
            let joins = (0..STEPS).map(|step| vec![join(step)]);
            for changes in leaves.chain(joins).chain([Vec::new()]) {
                let run = job::run_job(self.job(world), 0, world, &changes, || ());
                undisturbed = undisturbed.include(&run);
            }
        }
        Sweep { undisturbed, ..self }
    }

    /// One seed; what does not hold, in words.
    pub fn try_seed(&self, seed: u64, prologue: impl Fn() + Sync) -> Result<Figures, String> {
        let schedule = self.draw(seed);
        let run = self.run_schedule(seed, &schedule, prologue);
        invariants::check(&schedule, &run, &self.undisturbed, self.bounds).map_err(|reason| {
            let changes: Vec<&Event> =
                run.events().filter(|event| matches!(event, Event::Regrouped { .. })).collect();
            let (test, Schedule { world, faults, .. }) = (self.test, schedule);
            format!(
                "seed {seed}: {reason}\n{world} ranks, {faults:#?}\nchanges: {changes:#?}\n\
                 reproduce: THALWEG_SEED={seed} cargo test -p thalweg-train --test chaos -- {test} --nocapture"
            )
        })
    }

    fn run_schedule(&self, seed: u64, schedule: &Schedule, prologue: impl Fn() + Sync) -> Run {
        // In one run of four with a server messages are late and overtake those of others.
        let late = matches!(self.jobs, Jobs::Served(..)) && seed % 4 == 1;
        let jitter = if late { 8.0 } else { self.jitter };
        let network = Network { jitter, ..job::network(schedule.world, seed) };
        job::run_on(network, self.job(schedule.world), &schedule.faults, prologue)
    }

    /// `THALWEG_SEED` alone, with its faults and its changes of the group; else `THALWEG_SEEDS`, or as many as `ordinarily`,
    /// from `THALWEG_FIRST_SEED` on. Fails with the seeds that failed; returns what they did unless it was one alone.
    pub fn run(&self, ordinarily: u64) -> Option<Summary> {
        if let Some(seed) = asked("THALWEG_SEED") {
            self.show(seed);
            return None;
        }
        let first = asked("THALWEG_FIRST_SEED").unwrap_or(0);
        let (start, count) = (Instant::now(), asked("THALWEG_SEEDS").unwrap_or(ordinarily));
        let (next, all) = (AtomicU64::new(first), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= first + count {
                            return;
                        }
                        let figures = self.try_seed(seed, || ());
                        all.lock().unwrap().push(figures);
                    }
                });
            }
        });
        let (mut figures, mut failed) = (Vec::new(), Vec::new());
        for outcome in all.into_inner().unwrap() {
            outcome.map_or_else(|words| failed.push(words), |outcome| figures.push(outcome));
        }
        let summary = Summary { count, figures, failed };
        println!(
            "{}: {count} seeds from {first} on in {:.0} s: {}",
            self.test,
            start.elapsed().as_secs_f64(),
            summary.describe(&self.undisturbed)
        );
        summary.failed.iter().for_each(|words| println!("{}", words.lines().next().unwrap_or_default()));
        let failed = &summary.failed;
        assert!(failed.is_empty(), "{} of {count} seeds failed, the first: {}", failed.len(), failed[0]);
        // A few seeds need not have every fault.
        (count >= ordinarily).then_some(summary)
    }

    /// Seeds that failed once.
    pub fn run_again(&self, seeds: &[u64]) {
        for seed in seeds {
            self.try_seed(*seed, || ()).unwrap_or_else(|words| panic!("{words}"));
        }
    }

    fn show(&self, seed: u64) {
        let schedule = self.draw(seed);
        println!("{} ranks, {:#?}", schedule.world, schedule.faults);
        let run = self.run_schedule(seed, &schedule, || ());
        for (rank, ended) in run.ended.iter().enumerate() {
            println!("rank {rank}: {:?}", ended.result.as_ref().map(|end| end.outcome));
            let changes = ended.events.iter().filter(|event| matches!(event, Event::Regrouped { .. }));
            changes.for_each(|event| println!("  {event:?}"));
        }
        println!("{:?}", invariants::check(&schedule, &run, &self.undisturbed, self.bounds).unwrap());
    }
}

impl Summary {
    pub fn sum(&self, what: fn(&Figures) -> u64) -> u64 {
        self.figures.iter().map(what).sum()
    }

    /// The mean over the jobs that finished.
    pub fn mean(&self, what: fn(&Figures) -> f64) -> f64 {
        let finished = self.figures.iter().filter(|figures| figures.finished);
        finished.map(what).sum::<f64>() / self.finished().max(1) as f64
    }

    pub fn finished(&self) -> u64 {
        self.sum(|figures| u64::from(figures.finished))
    }

    fn describe(&self, undisturbed: &Undisturbed) -> String {
        let differences = |what: fn(&Figures) -> f64| {
            let all = || self.figures.iter().filter(|figures| figures.finished).map(what);
            let (least, greatest) = (all().fold(0.0, f64::min), all().fold(0.0, f64::max));
            format!("{least:+.2e} to {greatest:+.2e}, on average {:+.1e}", self.mean(what))
        };
        let ((least_loss, greatest_loss), (least, greatest)) = (undisturbed.losses, undisturbed.accuracies);
        format!(
            "{} faults, {} generations, {} steps redone, {} rows at risk, {} new members, {} jobs finished, {} had no rank left that could; \
             the final loss differs from {:.4} by {}, the accuracy from {:.4} by {}; without faults the loss is {least_loss:.4} to \
             {greatest_loss:.4}, the accuracy {least:.4} to {greatest:.4}",
            self.sum(|figures| figures.faults),
            self.sum(|figures| figures.generations),
            self.sum(|figures| figures.redone),
            self.sum(|figures| figures.at_risk),
            self.sum(|figures| figures.received),
            self.finished(),
            self.figures.len() as u64 - self.finished(),
            undisturbed.loss,
            differences(|figures| figures.loss_difference),
            undisturbed.accuracy,
            differences(|figures| figures.accuracy_difference),
        )
    }
}

fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}
