//! `[strategy.neighbours]`: workers with models of their own that average them with those of their neighbours.

use super::nearest;
use super::section::section;
use super::setting::{Setting, brief, choice};
use super::{JobSpec, Refuse};
use toml::Value;

choice! {
    /// When a worker averages models within a step.
    Mix {
        /// Models are sent before the gradient is computed and averaged without it: messages travel during the pass.
        Before = "before",
        /// Models are sent after their update, and averaged with it.
        After = "after",
    }
}

/// Which workers are neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Graph {
    Ring,
    Torus,
    Exponential,
    Complete,
    /// Pairs of workers.
    Edges(Vec<(usize, usize)>),
}

const NAMES: [&str; 4] = ["ring", "torus", "exponential", "complete"];

impl Setting for Graph {
    fn expects() -> String {
        "one of ring, torus, exponential, complete, or edges such as [[0, 1], [1, 2]]".into()
    }

    fn read(value: &Value) -> Result<Self, String> {
        let mismatch = || format!("expected {}, got {}", Self::expects(), brief(value));
        match value {
            Value::String(name) => match name.as_str() {
                "ring" => Ok(Graph::Ring),
                "torus" => Ok(Graph::Torus),
                "exponential" => Ok(Graph::Exponential),
                "complete" => Ok(Graph::Complete),
                other => Err(nearest::unknown("graph", other, NAMES.into_iter())),
            },
            Value::Array(edges) => {
                let edges: Option<Vec<(usize, usize)>> = edges.iter().map(read_edge).collect();
                edges.map(Graph::Edges).ok_or_else(mismatch)
            }
            _ => Err(mismatch()),
        }
    }

    fn show(&self) -> Option<Value> {
        let name = match self {
            Graph::Ring => "ring",
            Graph::Torus => "torus",
            Graph::Exponential => "exponential",
            Graph::Complete => "complete",
            Graph::Edges(edges) => {
                let number = |worker: usize| Value::Integer(worker as i64);
                let edge = |(one, other): &(usize, usize)| Value::Array(vec![number(*one), number(*other)]);
                return Some(Value::Array(edges.iter().map(edge).collect()));
            }
        };
        Some(Value::String(name.into()))
    }
}

fn read_edge(value: &Value) -> Option<(usize, usize)> {
    match value.as_array()?.as_slice() {
        [one, other] => Some((usize::read(one).ok()?, usize::read(other).ok()?)),
        _ => None,
    }
}

section! {
    /// Averages with neighbours.
    "strategy.neighbours" NeighboursSpec {
        /// Which workers are neighbours. ring: the one before and the one after, in a closed ring. torus: the four around it in a closed grid of a by b workers, with a and b as close as they can be. exponential: those at distances 1, 2, 4, ... on both sides of a ring. complete: all others. Or a list of edges such as [[0, 1], [1, 2]].
        graph: Graph = Graph::Ring;
        /// When models are averaged within a step.
        mix: Mix = Mix::Before;
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let Graph::Edges(edges) = &spec.neighbours.graph else { return };
    let workers = spec.engine.workers;
    for &(one, other) in edges {
        let reason = match one.max(other) {
            _ if one == other => format!("the edge [{one}, {other}] joins a worker to itself; drop it"),
            last if last >= workers => {
                format!("the edge [{one}, {other}] has a worker {last}, but there are {workers} workers")
            }
            _ => continue,
        };
        refuse("strategy.neighbours.graph", reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_written_as_they_are_read() {
        let read = |text: &str| {
            let table: toml::Table = format!("graph = {text}").parse().unwrap();
            Graph::read(&table["graph"])
        };
        for text in ["'ring'", "'torus'", "'exponential'", "'complete'", "[[0, 1], [1, 2]]", "[]"] {
            let graph = read(text).unwrap();
            assert_eq!(Graph::read(&graph.show().unwrap()).unwrap(), graph);
        }
        assert_eq!(read("[[0, 1], [2, 1]]").unwrap(), Graph::Edges(vec![(0, 1), (2, 1)]));
        for text in ["'rings'", "[[0]]", "[[0, 1, 2]]", "[[0, -1]]", "[0, 1]", "3"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("'rnig'").unwrap_err().contains("`ring`"));
    }
}
