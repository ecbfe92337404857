//! Sources of a job's data and model: the job file ([`SpecComponents`]) or closures of a program
//! ([`CustomComponents`]).

use crate::preflight::as_job_error;
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use thalweg_core::schema::Scaling;
use thalweg_core::spec::data::Scale;
use thalweg_core::spec::model::ModelSpec;
use thalweg_core::{Error, JobSpec, Model, Result, Schema};
use thalweg_data::Data;
use thalweg_graph::onnx::{EmbeddedScaling, OnnxModel};
use thalweg_graph::{Input, Network, Options, Team, zoo};
use thalweg_train::JobComponents;

/// Data and model as the job file specifies them.
pub struct SpecComponents {
    model: ModelSpec,
    options: Options,
    scale: Scale,
    /// The network that was built last, and the schema it is for: ranks in one process share it.
    built: Mutex<Option<(Schema, Network)>>,
}

impl SpecComponents {
    /// Takes the model, and the way rows are scaled, from a job.
    pub fn new(job: &JobSpec) -> SpecComponents {
        let (model, options, scale) = (job.model.clone(), Options::of(job), job.data.scale);
        SpecComponents { model, options, scale, built: Mutex::default() }
    }

    /// For rows that a program supplies: they are not scaled.
    pub(crate) fn with_custom_rows(self) -> SpecComponents {
        SpecComponents { scale: Scale::None, ..self }
    }

    /// The network for rows of this schema.
    pub fn network(&self, schema: &Schema) -> Result<Network> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match &*built {
            Some((of, network)) if of == schema => Ok(network.clone()),
            _ => Ok(built.insert((schema.clone(), self.build_network(schema)?)).1.clone()),
        }
    }

    fn build_network(&self, schema: &Schema) -> Result<Network> {
        if let Some((source, _)) = self.scaled_source()? {
            return source.for_schema(schema, self.options).map_err(|error| self.with_onnx_path(error));
        }
        let network = Network::for_schema(&self.layers(schema)?, schema, self.options);
        network.map_err(|mut error| {
            if let Some(zoo) = self.model.zoo {
                error.message = format!("model.zoo: {} does not fit the data: {}", zoo.name(), error.message);
            }
            error
        })
    }

    /// Adds the path of the ONNX file to an error about it.
    fn with_onnx_path(&self, error: Error) -> Error {
        match &self.model.onnx {
            Some(path) => with_onnx_path(Path::new(path), error),
            None => error,
        }
    }

    /// Reads the ONNX file, if the model comes from one.
    fn source(&self) -> Result<Option<OnnxModel>> {
        let Some(path) = self.model.onnx.as_ref().filter(|_| self.model.zoo.is_none()) else {
            return Ok(None);
        };
        read_onnx(Path::new(path)).map(Some)
    }

    /// The ONNX model without the scaling it embeds, and that scaling: the data pipeline applies it instead, so that
    /// rows are scaled once.
    fn scaled_source(&self) -> Result<Option<(OnnxModel, Option<EmbeddedScaling>)>> {
        let Some(source) = self.source()? else { return Ok(None) };
        let with_path = |error| self.with_onnx_path(error);
        match (source.embedded_scaling().map_err(with_path)?, self.scale) {
            (Some(embedded), Scale::Auto) => {
                Ok(Some((source.without_scaling(&embedded).map_err(with_path)?, Some(embedded))))
            }
            (Some(_), Scale::Standard | Scale::Minmax) => Err(Error::job(
                "data.scale: the ONNX file was exported with the scaling its model was trained with",
            )
            .hint("leave data.scale out to keep that scaling")),
            (None, scale) if scale != Scale::None && source.has_undeclared_scaling()? => Err(Error::job(
                "model.onnx: an earlier version of thalweg exported this file; it scales its rows itself without \
                 recording how: they would be scaled twice",
            )
            .hint("export it again, or set data.scale = \"none\"")),
            (_, _) => Ok(Some((source, None))),
        }
    }
}

/// Opens the data with the scaling that the model was trained with.
fn open_scaled(job: &JobSpec, embedded: &EmbeddedScaling) -> Result<Data> {
    let data = Data::open_with_scaling(&job.data, job.train.seed, &embedded.scaling, embedded.target)?;
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

/// Reads an ONNX file; errors name its path.
pub(crate) fn read_onnx(path: &Path) -> Result<OnnxModel> {
    let bytes = thalweg_cluster::regular_file::read(path).map_err(|error| {
        as_job_error(Error::io(format!("model.onnx: cannot read {}", path.display()), &error))
    })?;
    OnnxModel::read(&bytes).map_err(|error| with_onnx_path(path, error))
}

/// Adds the path of an ONNX file to an error, unless the message has it already.
pub(crate) fn with_onnx_path(path: &Path, mut error: Error) -> Error {
    let shown = path.display().to_string();
    if !error.message.contains(&shown) {
        error.message = error.message.replacen("model.onnx", &format!("model.onnx: {shown}"), 1);
    }
    error
}

impl JobComponents for SpecComponents {
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
        let structure = |(source, _): (OnnxModel, _)| source.structure(schema, self.options);
        self.scaled_source()?.map(structure).transpose().map_err(|error| self.with_onnx_path(error))
    }
}

/// Components whose data the preflight check has opened already.
pub(crate) struct OpenedData<'a> {
    components: &'a dyn JobComponents,
    data: RefCell<Opened<'a>>,
}

/// What [`OpenedData`] returns.
enum Opened<'a> {
    Own(Box<Data>),
    Shared(&'a Data),
    /// The source is opened again.
    Taken,
}

impl<'a> OpenedData<'a> {
    /// `data()` returns `data` on its first call and opens the source again after that.
    pub(crate) fn new(components: &'a dyn JobComponents, data: Data) -> OpenedData<'a> {
        OpenedData { components, data: RefCell::new(Opened::Own(Box::new(data))) }
    }

    /// `data()` returns rows that all ranks of this process share.
    pub(crate) fn shared(components: &'a dyn JobComponents, data: &'a Data) -> OpenedData<'a> {
        OpenedData { components, data: RefCell::new(Opened::Shared(data)) }
    }
}

impl JobComponents for OpenedData<'_> {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        let mut opened = self.data.borrow_mut();
        if let Opened::Shared(data) = &*opened {
            return Ok(data.share());
        }
        match std::mem::replace(&mut *opened, Opened::Taken) {
            Opened::Own(data) => Ok(*data),
            _ => self.components.data(job),
        }
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        self.components.model(schema, team)
    }
    fn layers(&self, schema: &Schema) -> Result<Vec<String>> {
        self.components.layers(schema)
    }
    fn onnx(&self, schema: &Schema) -> Result<Option<Vec<u8>>> {
        self.components.onnx(schema)
    }
}

type OpenData = Box<dyn Fn(&JobSpec) -> Result<Data> + Send + Sync>;
type BuildModel = Box<dyn Fn(&Schema) -> Result<Box<dyn Model>> + Send + Sync>;

/// Data and model that a program supplies; those it does not supply come from the job.
#[derive(Default)]
pub(crate) struct CustomComponents {
    pub(crate) data: Option<OpenData>,
    pub(crate) model: Option<BuildModel>,
    pub(crate) from_job: Option<SpecComponents>,
}

impl CustomComponents {
    fn spec_components(&self) -> Result<&SpecComponents> {
        self.from_job
            .as_ref()
            .ok_or_else(|| Error::internal("data or model was requested before the job was resolved"))
    }
}

impl JobComponents for CustomComponents {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        match &self.data {
            Some(open) => open(job),
            None => self.spec_components()?.data(job),
        }
    }
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        match &self.model {
            Some(build) => build(schema),
            None => self.spec_components()?.model(schema, team),
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
