//! The buckets of a gradient that is summed by messages, and the algorithm of each.
//!
//! Tensors stand in the order in which back-propagation finishes them, so a bucket is a run of adjacent tensors: it can
//! be sent when the last of them is complete. The report is behind the last tensor and is sent with the last bucket.
//! Rank 0's plan is broadcast to all.

use super::Description;
use crate::context::Context;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use thalweg_cluster::{Algorithm, AllReduceMethod, Bucket};
use thalweg_core::spec::bucket::BucketSize;
use thalweg_core::spec::setting::{Auto, Bytes};
use thalweg_core::spec::strategy::{Algorithm as NamedAlgorithm, TransportChoice};
use thalweg_core::{Error, JobSpec, Layout, Result, report};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The buckets of a gradient, in the order in which they are sent; none without an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BucketPlan {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    /// Its tensors, by index.
    tensors: Range<usize>,
    /// The name of its algorithm.
    algorithm: String,
}

impl BucketPlan {
    /// What the job asks for or, where it leaves the choice open, what a fixed table has: the same for every run. `hosts`
    /// has the host of each rank.
    pub(crate) fn of(job: &JobSpec, layout: &Layout, hosts: &[usize]) -> BucketPlan {
        let total = bytes(layout, &(0..layout.tensors().len()));
        let asked = AllReduceMethod::named(job.exchange.algorithm.name());
        let size = match job.exchange.bucket {
            // The transport's own all-reduce takes the whole gradient.
            BucketSize::Auto if job.exchange.transport == TransportChoice::Mpi && asked.is_none() => {
                BucketSize::Whole
            }
            BucketSize::Auto => auto(total),
            size => size,
        };
        match hosts.len() {
            0 | 1 => BucketPlan::default(),
            _ => BucketPlan::cut(job, layout, size, hosts),
        }
    }

    /// One bucket with all values, for strategies that sum models.
    pub(crate) fn whole(job: &JobSpec, layout: &Layout, hosts: &[usize]) -> BucketPlan {
        match hosts.len() {
            0 | 1 => BucketPlan::default(),
            _ => BucketPlan::cut(job, layout, BucketSize::Whole, hosts),
        }
    }

    /// Buckets of that size, by the job's algorithm or by the table's; one for the transport's own all-reduce.
    pub(crate) fn cut(job: &JobSpec, layout: &Layout, size: BucketSize, hosts: &[usize]) -> BucketPlan {
        let asked = AllReduceMethod::named(job.exchange.algorithm.name());
        let size = if asked == Some(AllReduceMethod::Native) { BucketSize::Whole } else { size };
        let pieces = cut(layout, size, job.exchange.first_bucket);
        let native = job.exchange.transport == TransportChoice::Mpi && pieces.len() == 1;
        let part = |tensors: Range<usize>| {
            let bytes = usize::try_from(bytes(layout, &tensors)).unwrap_or(usize::MAX);
            let method = asked.unwrap_or_else(|| AllReduceMethod::choose(native, bytes, hosts));
            Part { tensors, algorithm: method.name().into() }
        };
        BucketPlan { parts: pieces.into_iter().map(part).collect() }
    }

    /// The same buckets, summed by another algorithm.
    pub(crate) fn by(mut self, algorithm: Algorithm) -> BucketPlan {
        self.parts.iter_mut().for_each(|part| part.algorithm = algorithm.name().into());
        self
    }

    /// Broadcasts rank 0's plan and sets its algorithm for sums of `length` elements. All ranks must call it.
    pub(crate) fn adopt(self, cx: &mut Context<'_>, length: usize) -> Result<BucketPlan> {
        let broken = |error: postcard::Error| Error::internal(format!("a bucket plan: {error}"));
        let mine = postcard::to_stdvec(&self).map_err(broken)?;
        let theirs = cx.rank.world().broadcast("bucket plan", 0, mine)?;
        let plan: BucketPlan = postcard::from_bytes(&theirs).map_err(broken)?;
        let layout = cx.compute.model.layout();
        if !plan.is_valid(layout) {
            return Err(Error::internal(format!("rank 0's bucket plan is invalid: {plan:?}")));
        }
        if let Some(method) = plan.main_method(layout) {
            // An algorithm that the job names is for all sums, a chosen one for those of this size.
            let named = cx.job.exchange.algorithm != NamedAlgorithm::Auto;
            let least = if named { 0 } else { length * size_of::<f32>() };
            cx.rank.world().set_allreduce_algorithm(method, least);
        }
        Ok(plan)
    }

    /// Whether the buckets follow each other within the layout, by known algorithms.
    fn is_valid(&self, layout: &Layout) -> bool {
        let mut next = 0;
        self.parts.iter().all(|part| {
            let method = AllReduceMethod::named(&part.algorithm);
            let usable =
                method.is_some_and(|method| method != AllReduceMethod::Native || self.parts.len() == 1);
            let follows = part.tensors.start == next;
            next = part.tensors.end;
            usable && follows && next <= layout.tensors().len()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// The tensors of each bucket.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Range<usize>> {
        self.parts.iter().map(|part| &part.tensors)
    }

    /// The method of the longest bucket.
    fn main_method(&self, layout: &Layout) -> Option<AllReduceMethod> {
        let longest = self.parts.iter().max_by_key(|part| bytes(layout, &part.tensors))?;
        AllReduceMethod::named(&longest.algorithm)
    }

    /// The algorithms by name, joined by a plus.
    pub(crate) fn algorithms(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for part in &self.parts {
            if !names.contains(&part.algorithm.as_str()) {
                names.push(&part.algorithm);
            }
        }
        if names.is_empty() { "none".into() } else { names.join("+") }
    }

    /// For the transport: buckets of a buffer of `length` elements, the last one with the report.
    pub(crate) fn buckets(&self, layout: &Layout, length: usize) -> Vec<Bucket> {
        let count = self.parts.len();
        let bucket = |(index, part): (usize, &Part)| {
            let range = elements(layout, &part.tensors);
            let name = match (self.ends(layout, part), count) {
                (_, 1) => "gradients".into(),
                ((first, last), _) if first == last => {
                    format!("gradients of {first} (bucket {} of {count})", index + 1)
                }
                ((first, last), _) => {
                    format!("gradients of {first} to {last} (bucket {} of {count})", index + 1)
                }
            };
            Bucket {
                range: range.start..if index + 1 == count { length } else { range.end },
                algorithm: match AllReduceMethod::named(&part.algorithm) {
                    Some(AllReduceMethod::Schedule(algorithm)) => algorithm,
                    // Never cut into several buckets.
                    Some(AllReduceMethod::Native) | None => Algorithm::Ring,
                },
                name,
            }
        };
        self.parts.iter().enumerate().map(bucket).collect()
    }

    /// The buckets, for the report.
    pub(crate) fn reported(&self, layout: &Layout, length: usize) -> Vec<report::BucketReport> {
        let bucket = |(part, bucket): (&Part, Bucket)| {
            let (first, last) = self.ends(layout, part);
            let bytes = (bucket.range.len() * size_of::<f32>()) as u64;
            report::BucketReport {
                first: first.into(),
                last: last.into(),
                bytes,
                algorithm: part.algorithm.clone(),
            }
        };
        self.parts.iter().zip(self.buckets(layout, length)).map(bucket).collect()
    }

    pub(crate) fn describe(&self, layout: &Layout, length: usize) -> Description {
        Description { algorithm: self.algorithms(), buckets: self.reported(layout, length) }
    }

    /// The names of its first and last tensor.
    fn ends<'a>(&self, layout: &'a Layout, part: &Part) -> (&'a str, &'a str) {
        let name = |index: usize| layout.tensors().get(index).map_or("?", |tensor| tensor.name.as_str());
        (name(part.tensors.start), name(part.tensors.end.saturating_sub(1)))
    }
}

/// The size of buckets that the table has. Short gradients are one message; of long ones about an eighth overlaps with
/// the computation of the rest, in buckets long enough that latency does not count and short enough that the first one
/// is sent soon.
fn auto(total: u64) -> BucketSize {
    match total {
        0..=MIB => BucketSize::Whole,
        total => BucketSize::Bytes((total / 8).clamp(512 * KIB, 8 * MIB)),
    }
}

/// Runs of tensors that have at most a size together, `first` for the first one; a longer tensor is a bucket of its own.
fn cut(layout: &Layout, size: BucketSize, first: Auto<Bytes>) -> Vec<Range<usize>> {
    let count = layout.tensors().len();
    let most = match size {
        BucketSize::Whole | BucketSize::Auto => u64::MAX,
        BucketSize::Tensor => 0,
        BucketSize::Bytes(bytes) => bytes,
    };
    let mut buckets = Vec::new();
    let mut start = 0;
    for next in 1..count {
        let most = match first {
            Auto::Is(first) if buckets.is_empty() => first.0.min(most),
            _ => most,
        };
        if bytes(layout, &(start..next + 1)) > most {
            buckets.push(start..next);
            start = next;
        }
    }
    buckets.push(start..count);
    buckets
}

fn elements(layout: &Layout, tensors: &Range<usize>) -> Range<usize> {
    let at = |index: usize| layout.tensors().get(index).map_or(layout.len(), |tensor| tensor.offset);
    at(tensors.start)..at(tensors.end)
}

fn bytes(layout: &Layout, tensors: &Range<usize>) -> u64 {
    (elements(layout, tensors).len() * size_of::<f32>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::model::{Density, TensorRole};

    fn layout(sizes: &[usize]) -> Layout {
        let mut layout = Layout::default();
        for (index, size) in sizes.iter().enumerate() {
            layout.push(format!("t{index}"), &[*size], TensorRole::Trainable, Density::Dense);
        }
        layout
    }

    #[test]
    fn small_tensors_are_put_together_and_long_ones_stay_alone() {
        let layout = layout(&[1, 2, 30, 4, 5, 6]);
        assert_eq!(cut(&layout, BucketSize::Bytes(4 * 12), Auto::Auto), [0..2, 2..3, 3..5, 5..6]);
        assert_eq!(cut(&layout, BucketSize::Tensor, Auto::Auto).len(), 6);
        assert_eq!(cut(&layout, BucketSize::Whole, Auto::Auto), std::slice::from_ref(&(0..6)));
        assert_eq!(cut(&Layout::default(), BucketSize::Tensor, Auto::Auto), std::slice::from_ref(&(0..0)));
    }

    #[test]
    fn the_first_bucket_has_a_size_of_its_own() {
        let layout = layout(&[1, 2, 30, 4, 5, 60]);
        let cut = |first: u64| cut(&layout, BucketSize::Bytes(4 * 64), Auto::Is(Bytes(4 * first)));
        assert_eq!(cut(1), [0..1, 1..5, 5..6]);
        assert_eq!(cut(4), [0..2, 2..5, 5..6]);
        assert_eq!(cut(1000), [0..5, 5..6], "the size of the others is a limit for the first, too");
    }

    #[test]
    fn buckets_cover_the_buffer_in_order_and_are_named() {
        let layout = layout(&[10, 20, 30]);
        let job = JobSpec::default();
        let plan = BucketPlan::cut(&job, &layout, BucketSize::Bytes(120), &[0; 4]);
        let buckets = plan.buckets(&layout, 69);
        assert_eq!(buckets.iter().map(|bucket| bucket.range.clone()).collect::<Vec<_>>(), [0..30, 30..69]);
        assert_eq!(buckets[0].name, "gradients of t0 to t1 (bucket 1 of 2)");
        assert_eq!(buckets[1].name, "gradients of t2 (bucket 2 of 2)");
        assert_eq!(plan.reported(&layout, 69)[1].bytes, 4 * 39);
        assert_eq!(BucketPlan::of(&job, &layout, &[0; 4]).buckets(&layout, 69)[0].name, "gradients");
        assert_eq!(BucketPlan::of(&job, &layout, &[0]), BucketPlan::default());
    }

    #[test]
    fn what_the_transport_sums_by_itself_is_not_cut() {
        let layout = layout(&[1 << 20, 1 << 20]);
        let mut job = JobSpec::default();
        job.exchange.transport = TransportChoice::Mpi;
        let plan = BucketPlan::of(&job, &layout, &[0, 1, 2, 3]);
        assert_eq!((plan.len(), plan.algorithms().as_str()), (1, "native"));
        assert_eq!(plan.main_method(&layout), Some(AllReduceMethod::Native));
        // Buckets that the job asks for are messages.
        job.exchange.bucket = BucketSize::Tensor;
        let plan = BucketPlan::of(&job, &layout, &[0, 1, 2, 3]);
        assert_eq!((plan.len(), plan.algorithms().as_str()), (2, "ring"));
    }

    /// Presets that list overlap as missing send every network of the zoo in one bucket, after the pass; others cut it.
    #[test]
    fn presets_say_whether_networks_of_the_zoo_overlap() {
        use thalweg_core::spec::{JobLayers, preset};
        use thalweg_core::{Model, Task};
        use thalweg_graph::{Input, Options, zoo};
        let layouts = zoo::MODELS.iter().map(|model| {
            let (image, text) = (Input::Image([32, 32, 3]), Input::Symbols { window: 64, vocabulary: 65 });
            let (input, outputs) = if (model.layers)(image).is_ok() { (image, 10) } else { (text, 65) };
            zoo::network(model.name, input, outputs, Task::Classification, Options::default()).unwrap()
        });
        let networks: Vec<_> = layouts.collect();
        for preset in preset::all() {
            let mut layers = JobLayers::default();
            layers.add_assignment(&format!("strategy.preset={}", preset.name)).unwrap();
            let job = crate::registry::resolve(layers).unwrap().spec;
            if !matches!(job.exchange.bucket, BucketSize::Bytes(_) | BucketSize::Tensor) {
                continue;
            }
            let says = |what: &str| preset.missing.iter().any(|missing| missing.starts_with(what));
            for network in &networks {
                let buckets = BucketPlan::of(&job, network.layout(), &[0, 0]).len();
                let first = match job.exchange.first_bucket {
                    Auto::Is(first) => first.0,
                    Auto::Auto => 0,
                };
                let is_short = network.layout().len() as u64 * 4 <= first;
                let none = says("overlap for gradients below 64 MiB") || is_short;
                assert_eq!(buckets == 1, none, "{}: {buckets} buckets", preset.name);
            }
        }
    }

    #[test]
    fn the_table_takes_long_buckets_for_long_gradients() {
        assert_eq!(auto(MIB), BucketSize::Whole);
        assert_eq!(auto(2 * MIB), BucketSize::Bytes(512 * KIB));
        assert_eq!(auto(32 * MIB), BucketSize::Bytes(4 * MIB));
        assert_eq!(auto(1 << 30), BucketSize::Bytes(8 * MIB));
    }
}
