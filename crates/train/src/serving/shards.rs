//! Which parameters each of several servers owns: ranges of them, in the order of the servers' ranks.

use super::part;
use crate::context::Context;
use std::ops::Range;
use thalweg_core::model::TensorRole;
use thalweg_core::{Error, JobSpec, Layout, Result};
use thalweg_data::even_range;
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::{GradientTransform, Scope};

/// As many bytes on each of `count` servers, or nearly: cut at tensors, if an update needs whole ones.
pub fn split(layout: &Layout, scope: Scope, count: usize) -> Vec<Range<usize>> {
    let even = |number: usize| even_range(layout.len(), number, count);
    if scope == Scope::Element {
        return (0..count).map(even).collect();
    }
    let starts: Vec<usize> = layout.tensors().iter().map(|tensor| tensor.offset).collect();
    let (mut first, mut cuts) = (0, vec![0]);
    for number in 1..count {
        // Every shard has a tensor.
        let most = (starts.len() + number).saturating_sub(count);
        let nearest = (first + 1..=most).min_by_key(|tensor| starts[*tensor].abs_diff(even(number).start));
        first = nearest.unwrap_or(most);
        cuts.push(starts.get(first).copied().unwrap_or(layout.len()));
    }
    cuts.push(layout.len());
    cuts.windows(2).map(|cut| cut[0]..cut[1]).collect()
}

/// The servers by rank, and what each owns.
pub fn of(cx: &Context<'_>) -> Result<Vec<(usize, Range<usize>)>> {
    let servers = part::servers(cx)?;
    let ranges = split(cx.compute.model.layout(), cx.optimizer.scope(), servers.len());
    Ok(servers.into_iter().zip(ranges).collect())
}

/// Every server sends all ranks what it owns: then `whole` has all parameters. All ranks must call it.
pub fn gather(cx: &mut Context<'_>, whole: &mut [f32]) -> Result<()> {
    for (server, range) in of(cx)? {
        cx.rank.world().broadcast_into("parameters", server, &mut whole[range])?;
    }
    Ok(())
}

/// The published parameters on a server: its own, if it is alone.
#[derive(Debug, Default)]
pub struct Published {
    parameters: usize,
    range: Range<usize>,
    /// As published last, if it owns a part of them.
    whole: Vec<f32>,
}

impl Published {
    /// Of the only server of so many parameters.
    pub fn of(parameters: usize) -> Published {
        Published { parameters, range: 0..parameters, whole: Vec::new() }
    }

    /// Of one that owns this range of them.
    pub fn of_shard(self, range: Range<usize>) -> Published {
        Published { range, ..self }
    }

    /// All parameters, and those that this server owns.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    pub fn range(&self) -> &Range<usize> {
        &self.range
    }

    pub fn values<'a>(&'a self, own: &'a [f32]) -> &'a [f32] {
        if self.whole.is_empty() { own } else { &self.whole }
    }

    /// Room for all parameters, with those that this server owns.
    pub fn own_in_whole(&self, own: &[f32]) -> Vec<f32> {
        let mut whole = vec![0.0; self.parameters];
        match own.len() == whole.len() {
            true => whole.copy_from_slice(own),
            false => whole[self.range.clone()].copy_from_slice(own),
        }
        whole
    }

    /// When all meet: all get the parameters of all servers.
    pub fn gather(&mut self, cx: &mut Context<'_>, own: &[f32]) -> Result<()> {
        cx.rank.world().flush_messages()?;
        let mut whole = self.own_in_whole(own);
        gather(cx, &mut whole)?;
        if self.range.len() < self.parameters {
            self.whole = whole;
        }
        Ok(())
    }
}

/// Refuses more servers than there are pieces of the parameters, and a compensation of what is no gradient.
pub fn check(job: &JobSpec, layout: &Layout) -> Result<()> {
    let has_statistics = layout.tensors().iter().any(|tensor| tensor.role == TensorRole::Statistic);
    if job.mitigation.delay_compensation != 0.0 && has_statistics {
        let message = "strategy.mitigation.delay_compensation: the model has running statistics, whose changes are no gradients";
        return Err(Error::job(message).hint("drop the key, or use a model without batch normalisation"));
    }
    let count = job.servers.count;
    let optimizer = Optimizer::new(job.optimizer.rule(), 1).with_transform(GradientTransform::of(job));
    let (pieces, what) = match optimizer.scope() {
        Scope::Element => (layout.len(), "parameters"),
        Scope::Tensor | Scope::Gradient => {
            (layout.tensors().len(), "tensors, which the optimizer needs whole")
        }
    };
    if count > pieces.max(1) {
        return Err(Error::job(format!("strategy.servers.count: {count} servers for {pieces} {what}"))
            .hint(format!("use at most {pieces}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_core::model::Density;

    fn layout(lengths: &[usize]) -> Layout {
        let mut layout = Layout::default();
        for (index, length) in lengths.iter().enumerate() {
            layout.push(format!("tensor{index}"), &[*length], TensorRole::Trainable, Density::Dense);
        }
        layout
    }

    #[test]
    fn shards_are_even_or_end_at_the_nearest_tensor() {
        let layout = layout(&[1, 98, 1, 40, 60]);
        assert_eq!(split(&layout, Scope::Element, 3), [0..67, 67..134, 134..200]);
        assert_eq!(split(&layout, Scope::Tensor, 2), [0..100, 100..200]);
        assert_eq!(split(&layout, Scope::Tensor, 3), [0..99, 99..140, 140..200]);
        assert_eq!(split(&layout, Scope::Tensor, 5), [0..1, 1..99, 99..100, 100..140, 140..200]);
        assert_eq!(split(&layout, Scope::Tensor, 1)[0], 0..200);
    }

    proptest! {
        #[test]
        fn shards_follow_each_other_and_cut_no_tensor(
            lengths in prop::collection::vec(1usize..100, 1..12), count in 1usize..12,
        ) {
            let layout = layout(&lengths);
            for scope in [Scope::Element, Scope::Tensor] {
                let pieces = if scope == Scope::Element { layout.len() } else { lengths.len() };
                let shards = split(&layout, scope, count.min(pieces));
                prop_assert_eq!(shards.len(), count.min(pieces));
                prop_assert_eq!((shards[0].start, shards[shards.len() - 1].end), (0, layout.len()));
                prop_assert!(shards.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert!(shards.iter().all(|shard| !shard.is_empty()), "{:?}", shards);
                let starts: Vec<usize> = layout.tensors().iter().map(|tensor| tensor.offset).collect();
                prop_assert!(scope == Scope::Element || shards.iter().all(|shard| starts.contains(&shard.start)));
            }
        }
    }
}
