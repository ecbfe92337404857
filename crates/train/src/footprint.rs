//! How much memory a job takes at least, against what the machine has: known before anything is reserved.
//!
//! Parameters and state may be shared by the ranks of a host, so they count once, unless each worker has a model of its
//! own; a gradient and the values of a pass belong to each. Rows, buffers of the exchange and the program itself come on
//! top.

use crate::registry::{self, Setup};
use thalweg_cluster::linux::Machine;
use thalweg_core::schema::RowShape;
use thalweg_core::{Error, JobSpec, Model, Result, Schema};
use thalweg_graph::Optimizer;

/// Bytes by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, once or of all ranks of this host.
    pub parameters: u64,
    /// Optimizer state and what else the strategy keeps, the same.
    pub state: u64,
    /// Models of a round and the buffers to merge them, of all ranks of this host.
    pub working: u64,
    /// Gradients of all ranks of this host.
    pub gradients: u64,
    /// Values of a pass of all ranks of this host.
    pub values: u64,
}

impl Footprint {
    /// Of a training job with `ranks` ranks on this host.
    pub fn of_training(job: &JobSpec, model: &dyn Model, ranks: usize) -> Footprint {
        let parameters = floats(model.layout().len() as u64);
        let strategy = registry::of(job);
        let optimizer = Optimizer::new(job.optimizer.rule(), 1);
        let program = strategy.start(Setup { job, optimizer: &optimizer, parameters: 1, serves: None });
        let columns = program.state().columns().len() as u64 - 1;
        let passes = (job.engine.workers * job.train.accumulate).max(1);
        let rows = (job.train.global_batch / passes).max(1);
        let ranks = ranks.max(1) as u64;
        let copies = if strategy.claims.local_updates { ranks } else { 1 };
        Footprint {
            parameters: parameters.saturating_mul(copies),
            state: parameters.saturating_mul(columns * copies),
            working: parameters.saturating_mul(program.working_columns() as u64 * ranks),
            gradients: parameters.saturating_mul(ranks),
            values: model.pass_bytes(rows).saturating_mul(ranks),
        }
    }

    /// Of a model that predicts `rows` rows at once.
    pub fn of_prediction(model: &dyn Model, rows: usize) -> Footprint {
        let parameters = floats(model.layout().len() as u64);
        Footprint { parameters, values: model.pass_bytes(rows), ..Footprint::default() }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        [self.state, self.working, self.gradients, self.values]
            .iter()
            .fold(self.parameters, |sum, part| sum.saturating_add(*part))
    }

    /// What takes most: a tensor, or the result of a part of the model.
    fn largest(&self, model: &dyn Model) -> String {
        let value = model.largest_value().filter(|_| self.values > self.parameters);
        value.unwrap_or_else(|| {
            let tensor = model.layout().tensors().iter().max_by_key(|tensor| tensor.len());
            tensor
                .map_or(String::new(), |tensor| format!("its tensor `{}` is {:?}", tensor.name, tensor.shape))
        })
    }

    /// Refuses what this machine cannot hold. `schema` and `source` say how wide the rows are.
    pub fn check(&self, model: &dyn Model, schema: &Schema, source: &str) -> Result<()> {
        let machine = Machine::read();
        let has = [machine.memory_available, machine.memory_limit].into_iter().flatten().min();
        self.check_against(has, model, schema, source)
    }

    fn check_against(
        &self,
        has: Option<u64>,
        model: &dyn Model,
        schema: &Schema,
        source: &str,
    ) -> Result<()> {
        let Some(has) = has.filter(|has| self.total() > *has) else { return Ok(()) };
        let parts = [
            ("parameters", self.parameters),
            ("optimizer state", self.state),
            ("models of a round", self.working),
            ("gradients", self.gradients),
            ("values of a pass", self.values),
        ];
        let listed: Vec<String> = parts
            .iter()
            .filter(|(_, bytes)| *bytes >> 20 > 0)
            .map(|(name, bytes)| format!("{name} {}", shown(*bytes)))
            .collect();
        let error = Error::job(format!(
            "the model needs at least {} of memory ({}), but {} can be had here; {}",
            shown(self.total()),
            listed.join(", "),
            shown(has),
            self.largest(model)
        ));
        let mut hint = String::from(
            "use fewer workers on this machine, a smaller train.global_batch (or a larger train.accumulate) or a smaller model",
        );
        let columns = schema.width();
        if matches!(schema.shape, RowShape::Sparse { .. } | RowShape::Table { .. }) && columns > WIDE {
            hint += &format!(
                "; rows of {source} have {columns} columns, each an input of the model: fix a stray column number, or leave columns out"
            );
        }
        Err(error.hint(hint))
    }
}

/// Columns beyond which their number is worth a look.
const WIDE: usize = 100_000;

fn floats(count: u64) -> u64 {
    count.saturating_mul(4)
}

/// `2.5 GiB`.
fn shown(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::Task;
    use thalweg_core::schema::{Scaling, TargetScaling};
    use thalweg_core::spec::JobLayers;
    use thalweg_graph::{Activation, Network};

    fn schema(columns: usize) -> Schema {
        Schema {
            shape: RowShape::Sparse { columns, first: 0 },
            task: Task::Classification,
            label: None,
            classes: vec!["a".into(), "b".into()],
            scaling: Scaling::default(),
            target: TargetScaling::default(),
            reconstruct: false,
            source_columns: Vec::new(),
        }
    }

    #[test]
    fn what_no_machine_holds_is_refused_with_its_parts() {
        let job = crate::registry::resolve(JobLayers::default()).unwrap().spec;
        let model = Network::with_inputs(1 << 24).dense(128, Activation::Relu).dense(2, Activation::None);
        let model = model.classification().unwrap();
        let footprint = Footprint::of_training(&job, &model, 2);
        assert_eq!(footprint.gradients, 2 * footprint.parameters);
        assert!(footprint.parameters > 8 << 30 && footprint.values > 0);
        let schema = schema(1 << 24);
        let error = footprint.check_against(Some(16 << 30), &model, &schema, "rows.libsvm").unwrap_err();
        assert!(
            error.message.contains("parameters 8.0 GiB") && error.message.contains("but 16.0 GiB"),
            "{error}"
        );
        assert!(error.message.ends_with("its tensor `layers.0.weight` is [128, 16777216]"), "{error}");
        assert!(error.hint.unwrap().contains("rows of rows.libsvm have 16777216 columns"));
        assert_eq!(error.kind, thalweg_core::Kind::Job);
        assert_eq!(footprint.check_against(Some(1 << 40), &model, &schema, "rows.libsvm"), Ok(()));
        assert_eq!(footprint.check_against(None, &model, &schema, "rows.libsvm"), Ok(()));
    }

    #[test]
    fn local_rounds_keep_models_slots_and_a_mean_per_worker() {
        let model = Network::with_inputs(8).dense(2, Activation::None).classification().unwrap();
        let vectors = |preset: &str| {
            let mut layers = JobLayers::default();
            for setting in [&format!("strategy.preset={preset}"), "train.optimizer={kind='adamw'}"] {
                layers.add_assignment(setting).unwrap();
            }
            let job = crate::registry::resolve(layers).unwrap().spec;
            let Footprint { parameters, state, working, gradients, .. } =
                Footprint::of_training(&job, &model, 2);
            [parameters, state, working, gradients].map(|bytes| bytes / floats(model.layout().len() as u64))
        };
        assert_eq!(vectors("allreduce"), [1, 2, 0, 2]);
        // Two ranks, each with two moments; in a round with a model, two moments and a mean.
        assert_eq!(vectors("sparknet"), [2, 4, 8, 2]);
        // The outer velocity is one more.
        assert_eq!(vectors("diloco"), [2, 6, 8, 2]);
        // The block momentum, no moments between rounds, and the start of the round.
        assert_eq!(vectors("block-momentum"), [2, 2, 10, 2]);
        // The published mean.
        assert_eq!(vectors("gosgd"), [2, 4, 2, 2]);
        // The same, and a model with its moments after the step in progress.
        assert_eq!(vectors("dpsgd"), [2, 4, 8, 2]);
    }
}
