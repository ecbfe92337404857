//! A source opened, split and scaled.

use crate::format::{self, Opened, Source, memory};
use crate::rows::{Preparation, Rows, Store};
use crate::scaling::{Fitting, numbers};
use crate::selection::Selection;
use crate::share::share;
use crate::split::Split;
use crate::statistics::{BlockStatistics, Statistics};
use std::sync::{Arc, OnceLock};
use thalweg_core::schema::{Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::{DataSpec, Scale, VALIDATION_SHARE};
use thalweg_core::spec::setting::Held;
use thalweg_core::{Error, Result, Targets};

/// A source opened, sniffed, indexed and split.
#[derive(Debug)]
pub struct Data {
    /// What a row is; complete after [`Data::fit`].
    pub schema: Schema,
    /// The rows to learn from.
    pub training: Rows,
    /// The rows to judge by; there may be none.
    pub validation: Rows,
    fitting: Fitting,
    preparation: Arc<OnceLock<Preparation>>,
}

/// How a source is cut, and the memory for its decoded rows.
struct Plan {
    share: f64,
    seed: u64,
    memory: u64,
}

impl Data {
    /// Opens the source of a job and splits it by seed.
    pub fn open(spec: &DataSpec, seed: u64) -> Result<Data> {
        Data::open_split(spec, seed, None, None)
    }

    /// The same with a scaling that is known, whatever the job says about it.
    pub fn open_scaled(spec: &DataSpec, seed: u64, scaling: &Scaling, target: TargetScaling) -> Result<Data> {
        let spec = DataSpec { scale: Scale::None, ..spec.clone() };
        Data::open_split(&spec, seed, None, Some((scaling, target)))
    }

    /// The same rows and the same split again, with the schema that was stored with a model: nothing has to be fitted.
    pub fn open_again(spec: &DataSpec, seed: u64, schema: &Schema) -> Result<Data> {
        Data::open_split(spec, seed, Some(schema), None)
    }

    fn open_split(
        spec: &DataSpec,
        seed: u64,
        known: Option<&Schema>,
        scaling: Option<(&Scaling, TargetScaling)>,
    ) -> Result<Data> {
        let opened = format::open(spec, known)?;
        let held = match &spec.validation {
            Some(Held::Source(source)) => {
                let spec = DataSpec { source: source.clone(), validation: None, ..spec.clone() };
                Some(format::open(&spec, Some(&opened.schema))?.unseen())
            }
            _ => opened.held.clone(),
        };
        let share = match spec.validation {
            Some(Held::Share(share)) => share,
            _ => VALIDATION_SHARE,
        };
        let mut schema = opened.schema;
        if let Some((scaling, target)) = scaling {
            (schema.scaling, schema.target) = (scaling.clone(), target);
        }
        let fitting = match known {
            Some(_) => Fitting::done(),
            None => Fitting::choose(spec.scale, spec.missing, &mut schema),
        };
        let plan = Plan { share, seed, memory: spec.memory.0 / 2 };
        Data::assemble(opened.source, held, schema, fitting, plan)
            .map_err(|error| format::naming(error, &spec.source))
    }

    /// A user's own rows: dense features, row-major, `width` numbers each, with their targets. They are taken as they
    /// are, without scaling.
    pub fn in_memory(
        width: usize,
        features: Vec<f32>,
        targets: Targets,
        validation_share: f64,
        seed: u64,
    ) -> Result<Data> {
        let Opened { source, schema, .. } = memory::open(width, &features, &targets)?;
        Data::assemble(
            source,
            None,
            schema,
            Fitting::done(),
            Plan { share: validation_share, seed, memory: 0 },
        )
    }

    fn assemble(
        source: Arc<dyn Source>,
        held: Option<Arc<dyn Source>>,
        schema: Schema,
        fitting: Fitting,
        plan: Plan,
    ) -> Result<Data> {
        let preparation = Arc::new(OnceLock::new());
        if !fitting.needs_statistics() {
            let _ = preparation.set(Preparation::new(&schema));
        }
        let blocks = source.blocks().clone();
        let rows =
            |store: &Arc<Store>, selection| Rows::new(store.clone(), selection, preparation.clone(), &schema);
        let store = Store::new(source.clone(), plan.memory);
        let (training, validation) = match held {
            Some(held) => {
                let selection = Selection::all(held.blocks().clone());
                (rows(&store, Selection::all(blocks)), rows(&Store::new(held, plan.memory), selection))
            }
            None => {
                let split = match source.overlap() {
                    0 => Split::drawn(blocks, plan.share, plan.seed)?,
                    gap => Split::at_the_end(blocks, plan.share, gap)?,
                };
                (rows(&store, split.training), rows(&store, split.validation))
            }
        };
        Ok(Data { schema, training, validation, fitting, preparation })
    }

    /// A checksum of each file the rows come from, or of a user's own rows; those of validation rows from elsewhere
    /// follow. Another value in a row gives another.
    pub fn checksums(&self) -> Vec<u32> {
        let mut checksums = self.training.checksums().to_vec();
        if !self.training.shares_source(&self.validation) {
            checksums.extend(self.validation.checksums());
        }
        checksums
    }

    /// What the user had better know about how the sources are read.
    pub fn notices(&self) -> Vec<String> {
        self.training.notices().to_vec()
    }

    /// Whether [`Data::fit`] has to be called before rows can be loaded.
    pub fn needs_statistics(&self) -> bool {
        self.fitting.needs_statistics() && self.preparation.get().is_none()
    }

    /// Statistics of the training rows in this part's share of the blocks. Here rows are decoded: one that cannot be
    /// used is an error that names file and row. Validation rows of another source are decoded too, so that they do not
    /// fail after the first epoch.
    pub fn statistics(&self, part: usize, parts: usize) -> Result<Statistics> {
        let selection = self.training.selection();
        let wanted = if self.fitting.needs_columns() { numbers(&self.schema) } else { Vec::new() };
        let width = self.schema.width();
        let mut statistics = Statistics::default();
        let mut ids = Vec::new();
        for number in share(selection.blocks().len(), part, parts) {
            let block = self.training.store().block(number)?;
            let first = selection.blocks().range(number).start;
            ids.clear();
            selection.append_ids(number, &mut ids);
            let rows: Vec<usize> = ids.iter().map(|id| (id - first) as usize).collect();
            statistics.blocks.push(BlockStatistics::gather(number, &block, &rows, width, &wanted));
        }
        if !self.training.shares_source(&self.validation) {
            for number in share(self.validation.selection().blocks().len(), part, parts) {
                self.validation.store().block(number)?;
            }
        }
        Ok(statistics)
    }

    /// Fits scaling and imputation to the statistics of all parts together; from then on every set of rows applies
    /// them. The result is the same bits for any number of parts. The answer is what should be told: which columns hold
    /// values that cannot be told apart.
    pub fn fit(&mut self, parts: &[Statistics]) -> Result<Vec<String>> {
        if !self.needs_statistics() {
            return Ok(Vec::new());
        }
        let warnings = self.fitting.fit(parts, self.training.selection().blocks().len(), &mut self.schema)?;
        self.preparation
            .set(Preparation::new(&self.schema))
            .map_err(|_| Error::internal("the scaling was fitted twice"))?;
        Ok(warnings)
    }

    /// All rows of another source, read with a stored schema: the same columns by name, the same classes, categories
    /// and scaling. What does not fit is an error that names the column. Of an IDX folder with a t10k part, that part.
    pub fn open_with(spec: &DataSpec, schema: &Schema) -> Result<Rows> {
        let opened = format::open(&DataSpec { validation: None, ..spec.clone() }, Some(schema))?;
        Ok(Data::prepared(opened, spec, schema))
    }

    /// The same for rows to be predicted: labels are not looked at, and may be absent.
    pub fn open_unlabelled(spec: &DataSpec, schema: &Schema) -> Result<Rows> {
        let opened = format::open_unlabelled(&DataSpec { validation: None, ..spec.clone() }, schema)?;
        Ok(Data::prepared(opened, spec, schema))
    }

    fn prepared(opened: Opened, spec: &DataSpec, schema: &Schema) -> Rows {
        let source = opened.unseen();
        let preparation = Arc::new(OnceLock::new());
        let _ = preparation.set(Preparation::new(schema));
        let selection = Selection::all(source.blocks().clone());
        Rows::new(Store::new(source, spec.memory.0 / 2), selection, preparation, schema)
    }
}
