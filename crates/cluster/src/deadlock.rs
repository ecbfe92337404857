//! The error of ranks that wait for each other.

use thalweg_core::event::{Heartbeat, WaitsFor};
use thalweg_core::{Error, Kind};

/// Ranks of a list that are named.
const MAX_DESCRIBED: usize = 8;

const HINT: &str = "no rank goes on before another does: look at these operations in the program; all ranks of a group run its \
                    collectives in the same order, and a receive needs a send that comes before any wait for the receiver";

/// The error that names the members of a deadlock, whom each waits for, and in which operation.
pub fn error(members: &[(usize, &Heartbeat)]) -> Error {
    let ids: Vec<usize> = members.iter().map(|(id, _)| *id).collect();
    let mut waits: Vec<String> =
        members.iter().take(MAX_DESCRIBED).map(|(id, wait)| describe(*id, wait)).collect();
    if members.len() > MAX_DESCRIBED {
        waits.push(format!("and {} more", members.len() - MAX_DESCRIBED));
    }
    Error::new(Kind::RankFailed, format!("{} wait for each other: {}", join(&ids), waits.join(", ")))
        .hint(HINT)
}

/// `rank 0 for rank 2 in receive of weights at step 7`.
fn describe(id: usize, heartbeat: &Heartbeat) -> String {
    let awaited = match &heartbeat.waits_for {
        Some(WaitsFor::Any(ids)) if ids.len() > 1 => format!("any of {}", join(ids)),
        Some(WaitsFor::All(ids) | WaitsFor::Any(ids)) => join(ids),
        None => "others".into(),
    };
    format!("rank {id} for {awaited} in {} at step {}", heartbeat.name, heartbeat.step)
}

/// `ranks 0, 2 and 3`.
fn join(ids: &[usize]) -> String {
    let numbers = |ids: &[usize]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match ids {
        ids if ids.len() > MAX_DESCRIBED => {
            format!("ranks {} and {} more", numbers(&ids[..MAX_DESCRIBED]), ids.len() - MAX_DESCRIBED)
        }
        [first @ .., last] if !first.is_empty() => format!("ranks {} and {last}", numbers(first)),
        ids => format!("rank {}", numbers(ids)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_their_operations_are_named() {
        let wait = |name: &str, waits_for| Heartbeat {
            step: 7,
            name: name.into(),
            waits_for: Some(waits_for),
            ..Heartbeat::default()
        };
        let (send, all, any) = (
            wait("send of weights", WaitsFor::All(vec![2])),
            wait("all-reduce of gradients", WaitsFor::All(vec![0, 3])),
            wait("receive of weights", WaitsFor::Any(vec![0, 2])),
        );
        let error = error(&[(0, &send), (2, &all), (3, &any)]);
        assert_eq!(
            error.message,
            "ranks 0, 2 and 3 wait for each other: rank 0 for rank 2 in send of weights at step 7, rank 2 for ranks 0 and 3 in \
             all-reduce of gradients at step 7, rank 3 for any of ranks 0 and 2 in receive of weights at step 7"
        );
        assert!(error.culprit.is_none() && error.hint.is_some_and(|hint| hint.contains("same order")));
    }

    #[test]
    fn a_deadlock_of_many_ranks_is_described_in_bounds() {
        let wait = Heartbeat { name: "drain of messages".into(), ..Heartbeat::default() };
        let members: Vec<(usize, &Heartbeat)> = (0..500).map(|id| (id, &wait)).collect();
        let message = error(&members).message;
        assert!(
            message.starts_with("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 492 more wait for each other: "),
            "{message}"
        );
        assert!(message.ends_with(", and 492 more"), "{message}");
    }
}
