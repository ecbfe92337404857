//! Where data and model come from: the job file, or closures of a program.

use crate::preflight::nothing_started;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use thalweg_core::schema::Scaling;
use thalweg_core::spec::data::Scale;
use thalweg_core::spec::model::ModelSpec;
use thalweg_core::{Error, JobSpec, Model, Result, Schema};
use thalweg_data::Data;
use thalweg_graph::onnx::{Embedded, Source};
use thalweg_graph::{Input, Network, Options, Team, zoo};
use thalweg_train::Recipe;

/// Data and model as the job file says.
pub struct JobRecipe {
    model: ModelSpec,
    options: Options,
    scale: Scale,
}

impl JobRecipe {
    /// For a job.
    pub fn new(job: &JobSpec) -> JobRecipe {
        JobRecipe { model: job.model.clone(), options: Options::of(job), scale: job.data.scale }
    }

    /// The same for rows that a program brings, which are taken as they are.
    pub(crate) fn with_own_rows(self) -> JobRecipe {
        JobRecipe { scale: Scale::None, ..self }
    }

    /// The network for a data set.
    pub fn network(&self, schema: &Schema) -> Result<Network> {
        if let Some((source, _)) = self.scaled_source()? {
            return source.for_schema(schema, self.options).map_err(|error| self.named(error));
        }
        let network = Network::for_schema(&self.layers(schema)?, schema, self.options);
        network.map_err(|mut error| {
            if let Some(zoo) = self.model.zoo {
                error.message = format!("model.zoo: {} does not fit the data: {}", zoo.name(), error.message);
            }
            error
        })
    }

    /// An error that says which ONNX file it is about.
    fn named(&self, error: Error) -> Error {
        match &self.model.onnx {
            Some(path) => of_onnx(Path::new(path), error),
            None => error,
        }
    }

    /// The ONNX file, if the model comes from one.
    fn source(&self) -> Result<Option<Source>> {
        let Some(path) = self.model.onnx.as_ref().filter(|_| self.model.zoo.is_none()) else {
            return Ok(None);
        };
        read_onnx(Path::new(path)).map(Some)
    }

    /// The ONNX file for rows as the job scales them, and the scaling that it brought along.
    fn scaled_source(&self) -> Result<Option<(Source, Option<Embedded>)>> {
        let Some(source) = self.source()? else { return Ok(None) };
        let named = |error| self.named(error);
        match (source.embedded().map_err(named)?, self.scale) {
            (Some(embedded), Scale::Auto) => {
                Ok(Some((source.without_scaling(&embedded).map_err(named)?, Some(embedded))))
            }
            (Some(_), Scale::Standard | Scale::Minmax) => Err(Error::job(
                "data.scale: the ONNX file was exported with the scaling its model was trained with",
            )
            .hint("leave data.scale out to go on with that scaling")),
            (None, scale) if scale != Scale::None && source.hides_scaling()? => Err(Error::job(
                "model.onnx: an earlier version of thalweg exported this file; it scales its rows itself, and does \
                 not say how: they would be scaled twice",
            )
            .hint("export it again, or say data.scale = \"none\"")),
            (_, _) => Ok(Some((source, None))),
        }
    }
}

/// The data of a job, scaled as its model was trained.
fn open_scaled(job: &JobSpec, embedded: &Embedded) -> Result<Data> {
    let data = Data::open_scaled(&job.data, job.train.seed, &embedded.scaling, embedded.target)?;
    let (width, Scaling { shift, factor }) = (data.schema.width(), &embedded.scaling);
    let fits = |len: usize| len == 0 || len == width;
    match fits(shift.len()) && (factor.len() == 1 || fits(factor.len())) {
        true => Ok(data),
        false => Err(Error::job(format!(
            "model.onnx: it was trained on rows of {} numbers, the data has {width}",
            shift.len().max(factor.len())
        ))),
    }
}

/// Reads an ONNX file.
pub(crate) fn read_onnx(path: &Path) -> Result<Source> {
    let bytes = thalweg_cluster::regular::read(path).map_err(|error| {
        nothing_started(Error::io(format!("model.onnx: cannot read {}", path.display()), &error))
    })?;
    Source::read(&bytes).map_err(|error| of_onnx(path, error))
}

/// An error of an ONNX file, with its path.
pub(crate) fn of_onnx(path: &Path, mut error: Error) -> Error {
    let shown = path.display().to_string();
    if !error.message.contains(&shown) {
        error.message = error.message.replacen("model.onnx", &format!("model.onnx: {shown}"), 1);
    }
    error
}

impl Recipe for JobRecipe {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        let mut data = match self.scaled_source()? {
            Some((_, Some(embedded))) => open_scaled(job, &embedded)?,
            _ => Data::open(&job.data, job.train.seed)?,
        };
        data.schema.reconstruct = self.model.reconstructs();
        Ok(data)
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        Ok(Box::new(self.network(schema)?.with_team(Arc::clone(team))))
    }
    fn layers(&self, schema: &Schema) -> Result<Vec<String>> {
        match (self.model.zoo, &self.model.onnx) {
            (Some(zoo), _) => zoo::layers(zoo.name(), Input::of(schema)),
            (None, Some(_)) => Ok(Vec::new()),
            (None, None) => Ok(self.model.layers.clone()),
        }
    }
    fn onnx(&self, schema: &Schema) -> Result<Option<Vec<u8>>> {
        let skeleton = |(source, _): (Source, _)| source.skeleton(schema, self.options);
        self.scaled_source()?.map(skeleton).transpose().map_err(|error| self.named(error))
    }
}

/// A recipe whose data was opened already.
pub(crate) struct Opened<'a> {
    recipe: &'a dyn Recipe,
    data: RefCell<Option<Data>>,
}

impl<'a> Opened<'a> {
    /// Hands the data out the first time it is asked for.
    pub(crate) fn new(recipe: &'a dyn Recipe, data: Data) -> Opened<'a> {
        Opened { recipe, data: RefCell::new(Some(data)) }
    }
}

impl Recipe for Opened<'_> {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        let opened = self.data.borrow_mut().take();
        opened.map_or_else(|| self.recipe.data(job), Ok)
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        self.recipe.model(schema, team)
    }
    fn layers(&self, schema: &Schema) -> Result<Vec<String>> {
        self.recipe.layers(schema)
    }
    fn onnx(&self, schema: &Schema) -> Result<Option<Vec<u8>>> {
        self.recipe.onnx(schema)
    }
}

type OpenData = Box<dyn Fn(&JobSpec) -> Result<Data>>;
type BuildModel = Box<dyn Fn(&Schema) -> Result<Box<dyn Model>>>;

/// Data and model of a program's own; what it does not bring comes from the job.
#[derive(Default)]
pub(crate) struct OwnRecipe {
    pub(crate) data: Option<OpenData>,
    pub(crate) model: Option<BuildModel>,
    pub(crate) from_job: Option<JobRecipe>,
}

impl OwnRecipe {
    fn job_recipe(&self) -> Result<&JobRecipe> {
        self.from_job.as_ref().ok_or_else(|| Error::internal("the recipe was used before its job was known"))
    }
}

impl Recipe for OwnRecipe {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        match &self.data {
            Some(open) => open(job),
            None => self.job_recipe()?.data(job),
        }
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        match &self.model {
            Some(build) => build(schema),
            None => self.job_recipe()?.model(schema, team),
        }
    }
    fn layers(&self, schema: &Schema) -> Result<Vec<String>> {
        match (&self.model, &self.from_job) {
            (None, Some(job)) => job.layers(schema),
            _ => Ok(Vec::new()),
        }
    }
    fn onnx(&self, schema: &Schema) -> Result<Option<Vec<u8>>> {
        match (&self.model, &self.from_job) {
            (None, Some(job)) => job.onnx(schema),
            _ => Ok(None),
        }
    }
}
