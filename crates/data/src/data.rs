//! A source opened, split and scaled.

use crate::even_range::even_range;
use crate::format::{self, OpenedSource, RowSource, memory};
use crate::row_transform::RowTransform;
use crate::rows::{BlockStore, Rows};
use crate::scaling::{ScalingFit, numeric_positions};
use crate::selection::Selection;
use crate::split::RowSplit;
use crate::statistics::{BlockStatistics, Statistics};
use std::sync::{Arc, OnceLock};
use thalweg_core::schema::{Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::{DataSpec, Scale, VALIDATION_SHARE};
use thalweg_core::spec::setting::HeldOut;
use thalweg_core::{Error, Result, Targets};

/// A source opened, indexed and split into training and validation rows.
#[derive(Debug)]
pub struct Data {
    /// Columns, classes and scaling; complete after [`Data::fit`].
    pub schema: Schema,
    /// Rows to train on.
    pub training: Rows,
    /// Rows to validate on; may be empty.
    pub validation: Rows,
    /// Rows that were taken out of the training rows, to learn how models are combined.
    pub held_out: Option<Rows>,
    /// Rows of the split's training part, whatever was taken out of it.
    pub split_training: u64,
    fitting: ScalingFit,
    transform: Arc<OnceLock<RowTransform>>,
}

/// Split and cache parameters.
struct LoadConfig {
    validation_share: f64,
    seed: u64,
    cache_bytes: u64,
}

impl Data {
    /// Opens the source of a job and splits it by seed.
    pub fn open(spec: &DataSpec, seed: u64) -> Result<Data> {
        Data::open_split(spec, seed, None, None)
    }

    /// Like [`Data::open`], with a given scaling instead of the job's `data.scale`.
    pub fn open_with_scaling(
        spec: &DataSpec,
        seed: u64,
        scaling: &Scaling,
        target: TargetScaling,
    ) -> Result<Data> {
        let spec = DataSpec { scale: Scale::None, ..spec.clone() };
        Data::open_split(&spec, seed, None, Some((scaling, target)))
    }

    /// Opens the same rows with the same split, using the schema stored with a model: no fit is needed.
    pub fn open_with_schema(spec: &DataSpec, seed: u64, schema: &Schema) -> Result<Data> {
        Data::open_split(spec, seed, Some(schema), None)
    }

    fn open_split(
        spec: &DataSpec,
        seed: u64,
        known: Option<&Schema>,
        scaling: Option<(&Scaling, TargetScaling)>,
    ) -> Result<Data> {
        let opened = format::open(spec, known)?;
        let validation_source = match &spec.validation {
            Some(HeldOut::Source(source)) => {
                let spec = DataSpec { source: source.clone(), validation: None, ..spec.clone() };
                Some(format::open(&spec, Some(&opened.schema))?.evaluation_source())
            }
            _ => opened.validation.clone(),
        };
        let share = match spec.validation {
            Some(HeldOut::Share(share)) => share,
            _ => VALIDATION_SHARE,
        };
        let mut schema = opened.schema;
        if let Some((scaling, target)) = scaling {
            (schema.scaling, schema.target) = (scaling.clone(), target);
        }
        let fitting = match known {
            Some(_) => ScalingFit::none(),
            None => ScalingFit::choose(spec.scale, spec.missing, &mut schema),
        };
        let config = LoadConfig { validation_share: share, seed, cache_bytes: spec.memory.0 / 2 };
        Data::assemble(opened.source, validation_source, schema, fitting, config)
            .map_err(|error| format::with_source_name(error, &spec.source))
    }

    /// Rows given as arrays: dense, row-major features of `width` numbers each, with their targets. They are
    /// not scaled.
    pub fn in_memory(
        width: usize,
        features: Vec<f32>,
        targets: Targets,
        validation_share: f64,
        seed: u64,
    ) -> Result<Data> {
        let OpenedSource { source, schema, .. } = memory::open(width, &features, &targets)?;
        Data::assemble(
            source,
            None,
            schema,
            ScalingFit::none(),
            LoadConfig { validation_share, seed, cache_bytes: 0 },
        )
    }

    fn assemble(
        source: Arc<dyn RowSource>,
        validation_source: Option<Arc<dyn RowSource>>,
        schema: Schema,
        fitting: ScalingFit,
        config: LoadConfig,
    ) -> Result<Data> {
        let transform = Arc::new(OnceLock::new());
        if !fitting.needs_statistics() {
            let _ = transform.set(RowTransform::new(&schema));
        }
        let blocks = source.blocks().clone();
        let rows = |store: &Arc<BlockStore>, selection| {
            Rows::new(store.clone(), selection, transform.clone(), &schema)
        };
        let store = BlockStore::new(source.clone(), config.cache_bytes);
        let (training, validation) = match validation_source {
            Some(validation_source) => {
                let selection = Selection::all(validation_source.blocks().clone());
                (
                    rows(&store, Selection::all(blocks)),
                    rows(&BlockStore::new(validation_source, config.cache_bytes), selection),
                )
            }
            None => {
                let split = match source.overlap() {
                    0 => RowSplit::random(blocks, config.validation_share, config.seed)?,
                    gap => RowSplit::tail(blocks, config.validation_share, gap)?,
                };
                (rows(&store, split.training), rows(&store, split.validation))
            }
        };
        let split_training = training.len();
        Ok(Data { schema, training, validation, held_out: None, split_training, fitting, transform })
    }

    /// One checksum per file, or one for in-memory rows, then those of a separate validation source. Any
    /// changed value changes a checksum.
    pub fn checksums(&self) -> Vec<u32> {
        let mut checksums = self.training.checksums().to_vec();
        if !self.training.shares_source(&self.validation) {
            checksums.extend(self.validation.checksums());
        }
        checksums
    }

    /// The same rows for another rank of this process: blocks in memory are shared, the fit is its own.
    pub fn share(&self) -> Data {
        let transform = Arc::new(OnceLock::clone(&self.transform));
        let rows = |rows: &Rows| rows.with_transform(Arc::clone(&transform));
        let (training, validation) = (rows(&self.training), rows(&self.validation));
        let held_out = self.held_out.as_ref().map(rows);
        let Data { split_training, fitting, .. } = *self;
        Data {
            schema: self.schema.clone(),
            training,
            validation,
            held_out,
            split_training,
            fitting,
            transform,
        }
    }

    /// Takes a share of the training rows out of them, by seed; of rows that overlap the last ones. Nothing is left to do if that
    /// was done.
    pub fn hold_out(&mut self, share: f64, seed: u64) -> Result<()> {
        if self.held_out.is_none() {
            let gap = self.training.store().source.overlap();
            let (left, taken) = RowSplit::hold_out(&self.training.selection(), share, gap, seed)?;
            self.held_out = Some(self.training.with_selection(taken));
            self.training = self.training.with_selection(left);
        }
        Ok(())
    }

    /// Messages for the user about how the sources are read.
    pub fn notices(&self) -> Vec<String> {
        self.training.notices().to_vec()
    }

    /// Whether [`Data::fit`] must be called before rows can be loaded.
    pub fn needs_statistics(&self) -> bool {
        self.fitting.needs_statistics() && self.transform.get().is_none()
    }

    /// Statistics of the training rows in partition `part` of `parts` of the blocks. This decodes the rows:
    /// an invalid value is an error that names file and row. Rows of a separate validation source are decoded
    /// too, so that they cannot fail after the first epoch.
    pub fn statistics(&self, part: usize, parts: usize) -> Result<Statistics> {
        let selection = self.training.selection();
        let wanted = if self.fitting.needs_columns() { numeric_positions(&self.schema) } else { Vec::new() };
        let width = self.schema.width();
        let mut statistics = Statistics::default();
        let mut ids = Vec::new();
        for number in even_range(selection.blocks().len(), part, parts) {
            let block = self.training.store().block(number)?;
            let first = selection.blocks().range(number).start;
            ids.clear();
            selection.append_ids(number, &mut ids);
            let rows: Vec<usize> = ids.iter().map(|id| (id - first) as usize).collect();
            statistics.blocks.push(BlockStatistics::collect(number, &block, &rows, width, &wanted));
        }
        if !self.training.shares_source(&self.validation) {
            for number in even_range(self.validation.selection().blocks().len(), part, parts) {
                self.validation.store().block(number)?;
            }
        }
        Ok(statistics)
    }

    /// Fits scaling and imputation to the statistics of all partitions; all row sets apply them from then on.
    /// The result is bit-identical for any number of partitions. Returns warnings about columns whose values
    /// collapse in single precision.
    pub fn fit(&mut self, parts: &[Statistics]) -> Result<Vec<String>> {
        if !self.needs_statistics() {
            return Ok(Vec::new());
        }
        let warnings = self.fitting.fit(parts, self.training.selection().blocks().len(), &mut self.schema)?;
        self.transform
            .set(RowTransform::new(&self.schema))
            .map_err(|_| Error::internal("the scaling was fitted twice"))?;
        Ok(warnings)
    }

    /// Opens all rows of another source with a stored schema: columns are matched by name, classes,
    /// categories and scaling are reused. A mismatch is an error that names the column. Of an IDX folder with
    /// a t10k part, only that part is read.
    pub fn open_for_evaluation(spec: &DataSpec, schema: &Schema) -> Result<Rows> {
        let opened = format::open(&DataSpec { validation: None, ..spec.clone() }, Some(schema))?;
        Ok(Data::transformed(opened, spec, schema))
    }

    /// Like [`Data::open_for_evaluation`], for prediction: labels are ignored and may be absent.
    pub fn open_for_prediction(spec: &DataSpec, schema: &Schema) -> Result<Rows> {
        let opened = format::open_unlabelled(&DataSpec { validation: None, ..spec.clone() }, schema)?;
        Ok(Data::transformed(opened, spec, schema))
    }

    fn transformed(opened: OpenedSource, spec: &DataSpec, schema: &Schema) -> Rows {
        let source = opened.evaluation_source();
        let transform = Arc::new(OnceLock::new());
        let _ = transform.set(RowTransform::new(schema));
        let selection = Selection::all(source.blocks().clone());
        Rows::new(BlockStore::new(source, spec.memory.0 / 2), selection, transform, schema)
    }
}
