//! The state of a strategy on one rank: named columns, each as long as the parameters. (Scalars, such as GoSGD's weight,
//! are fields of their strategy: it ends with its group.)
//!
//! Checkpoints, resumption, state transfer to new members and changes of the group are views of it. No column is tied to
//! a world size, and none ends with a generation of the group.

use std::ops::Range;
use thalweg_graph::optimizer::StateBuffers;

/// How a column is spread over the members, and what happens to it when their number changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The same bits on every member. Members without it, or behind the others, get it from those that have it.
    Replicated,
    /// Every member has values of its own. Those of a lost member are dropped, a new member starts with values of the
    /// others, and a checkpoint stores all.
    PerMember,
    /// Servers alone keep it; workers have copies of the parameters at best, and no values of other columns. The loss of
    /// a server ends the job, so it is never transferred.
    OnServers,
}

/// The name of the first column.
pub const PARAMETERS: &str = "parameters";

/// One named column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: &'static str,
    pub spread: Spread,
    pub values: Vec<f32>,
}

/// The columns of a strategy: the parameters first.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    columns: Vec<Column>,
    /// Of members with parameters of their own: the model that all publish, as it was formed last.
    published: Option<Vec<f32>>,
}

impl State {
    /// Replicated parameters, all zero.
    pub fn of_parameters(length: usize) -> State {
        State::with_parameters(Spread::Replicated, length)
    }

    /// Parameters of every member's own, all zero.
    pub fn of_own_parameters(length: usize) -> State {
        State { published: Some(Vec::new()), ..State::with_parameters(Spread::PerMember, length) }
    }

    /// Parameters that are spread like this, all zero.
    pub fn with_parameters(spread: Spread, length: usize) -> State {
        State { columns: Vec::new(), published: None }.with(PARAMETERS, spread, length)
    }

    /// Adds columns that servers keep, and this rank does not.
    pub fn without_values(self, names: &[&'static str]) -> State {
        names.iter().fold(self, |state, name| state.with(name, Spread::OnServers, 0))
    }

    /// Adds a column of zeros.
    fn with(mut self, name: &'static str, spread: Spread, length: usize) -> State {
        self.columns.push(Column { name, spread, values: vec![0.0; length] });
        self
    }

    /// Adds columns of zeros, as long as the parameters.
    pub fn with_columns(self, names: &[&'static str], spread: Spread) -> State {
        let length = self.len();
        names.iter().fold(self, |state, name| state.with(name, spread, length))
    }

    /// Drops all but these elements of every column.
    pub fn keep(&mut self, range: &Range<usize>) {
        for column in &mut self.columns {
            column.values = column.values[range.clone()].to_vec();
        }
    }

    /// Takes over the values of another state with the same columns.
    pub fn copy_from(&mut self, other: &State) {
        for (column, from) in self.columns.iter_mut().zip(&other.columns) {
            column.values.copy_from_slice(&from.values);
        }
    }

    /// Swaps the columns with those of another state; what is published stays.
    pub fn swap_columns(&mut self, other: &mut State) {
        std::mem::swap(&mut self.columns, &mut other.columns);
    }

    /// Elements of each column.
    pub fn len(&self) -> usize {
        self.columns[0].values.len()
    }

    /// Whether every member has parameters of its own.
    pub fn has_own_parameters(&self) -> bool {
        self.columns[0].spread == Spread::PerMember
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub fn columns_mut(&mut self) -> &mut [Column] {
        &mut self.columns
    }

    /// Bytes of all columns that new members receive.
    pub fn bytes(&self) -> usize {
        let received = self.columns.iter().filter(|column| column.spread != Spread::OnServers).count();
        received * size_of_val(self.parameters())
    }

    /// The model that all publish, if it is no column.
    pub fn published(&self) -> Option<&[f32]> {
        self.published.as_deref()
    }

    pub fn published_mut(&mut self) -> &mut Vec<f32> {
        self.published.get_or_insert_default()
    }

    /// Until all meet, a member publishes its own parameters.
    pub fn publish_own(&mut self) {
        self.published = Some(self.parameters().to_vec());
    }

    pub fn parameters(&self) -> &[f32] {
        &self.columns[0].values
    }

    pub fn parameters_mut(&mut self) -> &mut Vec<f32> {
        &mut self.columns[0].values
    }

    /// The values of a column by name; empty if there is none.
    pub fn column(&self, name: &str) -> &[f32] {
        self.columns.iter().find(|column| column.name == name).map_or(&[], |column| &column.values)
    }

    /// Parameters and one other column, for an update of both.
    pub fn parameters_and(&mut self, name: &str) -> (&mut [f32], &mut [f32]) {
        let (parameters, others) = self.columns.split_at_mut(1);
        let other = others.iter_mut().find(|column| column.name == name);
        (&mut parameters[0].values, other.map_or(&mut [], |column| &mut column.values))
    }

    /// Parameters and the columns of an optimizer's slots, as it takes them.
    pub fn buffers_mut(&mut self, slots: &[&str]) -> StateBuffers<&mut [f32]> {
        let is_used = |(index, column): &(usize, &mut Column)| *index == 0 || slots.contains(&column.name);
        let columns = self.columns.iter_mut().enumerate().filter(is_used);
        let mut columns = columns.map(|(_, column)| &mut column.values[..]);
        [0, 1, 2].map(|_| columns.next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name_and_in_order() {
        let mut state = State::of_parameters(3)
            .with_columns(&["velocity"], Spread::Replicated)
            .with_columns(&["first_moment"], Spread::PerMember);
        state.parameters_mut().fill(2.0);
        state.parameters_and("velocity").1.fill(5.0);
        assert_eq!((state.len(), state.bytes()), (3, 36));
        assert_eq!((state.parameters(), state.column("velocity")), (&[2.0; 3][..], &[5.0; 3][..]));
        assert_eq!(state.column("first_moment"), [0.0; 3]);
        assert!(state.column("none").is_empty() && state.parameters_and("none").1.is_empty());
        assert_eq!(state.buffers_mut(&["velocity"])[..2].iter().map(|values| values[0]).sum::<f32>(), 7.0);
        let [parameters, moment, none] = state.buffers_mut(&["first_moment"]);
        assert_eq!((parameters[0], moment[0], none.len()), (2.0, 0.0, 0));
    }
}
