use super::*;
use crate::scheduling::{Admission, Quorum, StaleSynchronous};
use proptest::prelude::*;
use thalweg_core::spec::scheduling::Late;

/// Steps of 12 rows; the last is shorter than there are workers.
const STEPS: u64 = 20;

fn step(step: u64) -> Option<Piece> {
    let rows = if step + 1 == STEPS { 2 } else { 12 };
    let rows: Vec<u64> = (0..rows).map(|row| 12 * step + row).collect();
    (step < STEPS).then_some(Piece { step, epoch: 0, of_step: rows.len(), rows })
}

fn arrived(worker: Worker) -> ShareProgress {
    ShareProgress::Arrived { worker, held: None, report: StepReport::default(), version: 0 }
}

/// Rows that were computed, and those that were dropped.
#[derive(Default)]
struct Account {
    computed: Vec<u64>,
    dropped: Vec<u64>,
}

/// Runs workers of random speed to the end of all steps; at some choices one is lost or joins.
fn run(
    policy: &dyn Policy,
    warm_start: u64,
    mut workers: Vec<Worker>,
    choices: &[usize],
) -> Result<Account, TestCaseError> {
    let (mut table, mut account, mut opened) = (ClockTable::new(warm_start), Account::default(), 0);
    let (mut asking, mut met): (Vec<Worker>, Vec<Worker>) = (workers.clone(), Vec::new());
    table.set_workers(&workers);
    let mut choices = choices.iter().copied().chain((0..).map(|number| number * 7 % 5));
    for turn in 0u32.. {
        prop_assert!(turn < 10_000, "it does not end");
        loop {
            let before = table.clocks.clone();
            for worker in std::mem::take(&mut asking) {
                let next = table.next(worker, policy, || {
                    opened += 1;
                    step(opened - 1)
                });
                match next {
                    NextTask::Compute(task) => {
                        prop_assert!(!task.piece.rows.is_empty());
                        if task.piece.step >= warm_start {
                            let is_warm = |worker| {
                                table.task(worker).is_some_and(|(task, _)| task.piece.step < warm_start)
                            };
                            prop_assert!(
                                !table.computing().any(is_warm),
                                "others begin before the warm start ends"
                            );
                        } else {
                            prop_assert_eq!(task.piece.rows.len(), task.piece.of_step);
                        }
                    }
                    NextTask::Wait => asking.push(worker),
                    NextTask::Meet => met.push(worker),
                }
            }
            if table.clocks == before {
                break;
            }
        }
        let busy: Vec<Worker> = table.computing().collect();
        if busy.is_empty() {
            prop_assert!(asking.is_empty(), "{asking:?} wait for nobody at {:?}", table.clocks);
            prop_assert_eq!(met.len(), workers.len());
            return Ok(account);
        }
        let choice = choices.next().unwrap_or(0);
        if choice >= 50 && workers.len() > 1 && met.is_empty() {
            // It is lost, wherever it is; in some cases another one joins with its id.
            let lost = workers.remove(choice % workers.len());
            asking.retain(|worker| *worker != lost);
            if choice % 2 == 0 {
                let joined = Worker { member: lost.member, since: turn + 2 };
                workers.push(joined);
                workers.sort();
                asking.push(joined);
            }
            table.set_workers(&workers);
            continue;
        }
        let worker = busy[choice % busy.len()];
        let (task, owner) = table.task(worker).cloned().expect("a task");
        if policy.admit(&table.clocks, owner) != Admission::Drop {
            account.computed.extend(&task.piece.rows);
        }
        let is_open = task.clock >= table.clocks.closed();
        prop_assert!(!is_open || !table.abandon(worker, task.number), "it leaves an open clock");
        table.arrive(worker, arrived(worker));
        while let Some(closed) = table.close(policy) {
            let missing = |share: &&Share| !matches!(share.progress, ShareProgress::Arrived { .. });
            account.dropped.extend(closed.shares.iter().filter(missing).flat_map(|share| share.rows.clone()));
            let late: Vec<(Worker, u64)> = table.late().collect();
            for (worker, task) in late.into_iter().filter(|_| policy.tells_late_workers() && choice % 3 > 0) {
                prop_assert!(table.abandon(worker, task) && !table.abandon(worker, task));
                asking.push(worker);
            }
        }
        asking.push(worker);
    }
    Ok(account)
}

fn workers(count: usize) -> Vec<Worker> {
    (0..count).map(|member| Worker { member, since: 1 }).collect()
}

fn all_rows() -> Vec<u64> {
    (0..STEPS).filter_map(step).flat_map(|step| step.rows).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever the speed of workers and whoever is lost, every row is computed once and no clock is lost.
    #[test]
    fn bounded_workers_compute_every_row_once(
        count in 1usize..6,
        staleness in 0u64..4,
        warm_start in 0u64..6,
        choices in prop::collection::vec(0usize..52, 0..200),
    ) {
        let policy = StaleSynchronous { staleness, admission: Admission::Hold };
        let mut account = run(&policy, warm_start, workers(count), &choices)?;
        account.computed.sort_unstable();
        prop_assert_eq!(account.computed, all_rows());
        prop_assert!(account.dropped.is_empty());
    }

    /// With a quorum, every row is computed once or dropped, whether late workers finish or abandon.
    #[test]
    fn a_quorum_computes_or_drops_every_row(
        count in 1usize..6,
        backups in 0usize..3,
        abandons: bool,
        choices in prop::collection::vec(0usize..52, 0..200),
    ) {
        let late = if abandons { Late::Abandon } else { Late::Finish };
        let mut account = run(&Quorum { backups, late }, 0, workers(count), &choices)?;
        account.computed.append(&mut account.dropped);
        account.computed.sort_unstable();
        prop_assert_eq!(account.computed, all_rows());
    }
}
