//! Where data and model come from: the job file, or closures of a program.

use std::cell::RefCell;
use thalweg_core::{Error, JobSpec, Model, Result, Schema};
use thalweg_data::Data;
use thalweg_graph::{Input, Network, Options};
use thalweg_train::Recipe;

/// Data and model as the job file says.
pub struct JobRecipe {
    layers: Vec<String>,
    seed: u64,
}

impl JobRecipe {
    /// For a job.
    pub fn new(job: &JobSpec) -> JobRecipe {
        JobRecipe { layers: job.model.layers.clone(), seed: job.train.seed }
    }
}

impl Recipe for JobRecipe {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        Data::open(&job.data, job.train.seed)
    }
    fn model(&self, schema: &Schema) -> Result<Box<dyn Model>> {
        let options = Options { seed: self.seed, ..Options::default() };
        let input = Input::of(schema);
        Ok(Box::new(Network::build_with(&self.layers, input, schema.outputs(), schema.task, options)?))
    }
    fn layers(&self) -> Vec<String> {
        self.layers.clone()
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
    fn model(&self, schema: &Schema) -> Result<Box<dyn Model>> {
        self.recipe.model(schema)
    }
    fn layers(&self) -> Vec<String> {
        self.recipe.layers()
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
    fn model(&self, schema: &Schema) -> Result<Box<dyn Model>> {
        match &self.model {
            Some(build) => build(schema),
            None => self.job_recipe()?.model(schema),
        }
    }
    fn layers(&self) -> Vec<String> {
        match (&self.model, &self.from_job) {
            (None, Some(job)) => job.layers(),
            _ => Vec::new(),
        }
    }
}
