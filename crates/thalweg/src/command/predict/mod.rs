//! `thalweg predict`: predictions of a trained model, row by row; a text model continues its input.

mod text;

use super::rows::{self, Format};
use crate::command::warn_of_unseen;
use crate::preflight::as_job_error;
use clap::Args;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_cluster::durable::write_whole;
use thalweg_core::schema::RowShape;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Batch, Error, Kind, Model, Result, Schema, Task};
use thalweg_data::Data;
use thalweg_train::SavedModel;

/// Rows per batch.
const BATCH: usize = 512;

/// Arguments of `predict`.
#[derive(Args, Debug)]
pub struct PredictArgs {
    /// The folder of a run, its model.safetensors, or a checkpoint (of a stopped run, the newest is taken)
    pub model: PathBuf,
    /// Input rows: a file, any source a job can name, or - for standard input; for a text model, the text to continue
    /// or a file with it
    #[arg(default_value = "-")]
    pub input: String,
    /// Format of input and output (default: by the input's extension, else csv)
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Change how the input is read: --set data.delimiter=";", --set data.header=false
    #[arg(long, value_name = "data.KEY=VALUE")]
    pub set: Vec<String>,
    /// Output file (default: standard output)
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Also write the probability of every class
    #[arg(long)]
    pub probabilities: bool,
    /// Characters that a text model generates (with --format: the next one of every row instead)
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub length: u64,
    /// Sampling temperature: 0 takes the likeliest character, 1 samples from the model's distribution
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temperature: f64,
    /// Seed of the sampling: the same seed generates the same text
    #[arg(long, value_name = "S", default_value_t = 7)]
    pub seed: u64,
}

/// Predicts and writes the output.
pub fn run(args: &PredictArgs) -> Result<()> {
    let saved = rows::model(&args.model)?;
    let Some(path) = &args.out else {
        let mut output = BufWriter::new(io::stdout().lock());
        return match predict(args, &saved, &mut output).and_then(|()| flush(&mut output)) {
            // A closed pipe (`| head`) is no failure.
            Err(error) if error.kind == Kind::Interrupted => Ok(()),
            result => result,
        };
    };
    // Atomic: a reader never sees a partial file.
    write_whole(path, |output| predict(args, &saved, output))
}

/// Continues a text, or predicts every row.
fn predict(args: &PredictArgs, saved: &SavedModel, output: &mut impl Write) -> Result<()> {
    let schema = &saved.schema;
    if let (RowShape::Text { alphabet, .. }, None, false) = (&schema.shape, args.format, args.probabilities) {
        return text::write(args, saved, alphabet, output);
    }
    let (model, parameters) = saved.model(Arc::default())?;
    let format = args.format.unwrap_or_else(|| Format::of(&args.input));
    let every = args.probabilities;
    let mut predictor = Predictor { model, parameters, schema, format, every, outputs: Vec::new() };
    let spec = rows::job(saved, &args.model, Some(&args.input), &args.set)?.data;
    if rows::is_indexed(&args.input) {
        return predictor.predict_source(&spec, output);
    }
    predictor.predict_files(saved, &args.input, &spec, output)
}

fn flush(output: &mut impl Write) -> Result<()> {
    output.flush().map_err(|error| unwritable(&error))
}

fn unwritable(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Error::new(Kind::Interrupted, "the reader closed the pipe"),
        _ => Error::io("cannot write the predictions", error),
    }
}

struct Predictor<'a> {
    model: Box<dyn Model>,
    parameters: Vec<f32>,
    schema: &'a Schema,
    format: Format,
    every: bool,
    outputs: Vec<f32>,
}

impl Predictor<'_> {
    /// Predicts the rows of files, or of standard input, read as streams.
    fn predict_files(
        &mut self,
        saved: &SavedModel,
        input: &str,
        spec: &DataSpec,
        output: &mut impl Write,
    ) -> Result<()> {
        let files = match input {
            "-" => vec!["-".into()],
            input => thalweg_data::source_files(input).map_err(as_job_error)?,
        };
        let several = files.len() > 1;
        for (number, file) in files.iter().enumerate() {
            let mut predict = || self.predict_file(saved, file, spec, (number == 0, !several), output);
            predict().map_err(|error| rows::named(file, error))?;
        }
        Ok(())
    }

    fn predict_file(
        &mut self,
        saved: &SavedModel,
        file: &str,
        spec: &DataSpec,
        (first, only): (bool, bool),
        output: &mut impl Write,
    ) -> Result<()> {
        let mut records = rows::records(file, self.format, saved, spec)?;
        let mut batch = records.empty_batch();
        // Nothing is written until the first batch has been read without an error.
        let mut more = records.next_batch(BATCH, &mut batch)?;
        if only && !more {
            return Err(records.no_rows(rows::shown(file)));
        }
        if let Some(warning) = records.warning().filter(|_| first) {
            eprintln!("warning: {warning}");
        }
        if first {
            self.header(output)?;
        }
        while more {
            self.predict_batch(&batch, output)?;
            more = records.next_batch(BATCH, &mut batch)?;
        }
        warn_of_unseen(&records.unseen_categories());
        Ok(())
    }

    /// Predicts all rows of an indexed source; labels are ignored.
    fn predict_source(&mut self, spec: &DataSpec, output: &mut impl Write) -> Result<()> {
        let rows = Data::open_for_prediction(spec, self.schema).map_err(as_job_error)?;
        let mut batch = rows.empty_batch();
        self.header(output)?;
        let mut next = 0;
        while next < rows.len() {
            let end = (next + BATCH as u64).min(rows.len());
            let ids: Vec<u64> = (next..end).map(|index| rows.id(index)).collect();
            rows.load(&ids, 0, &mut batch)?;
            self.predict_batch(&batch, output)?;
            next = end;
        }
        warn_of_unseen(&rows.unseen_categories());
        Ok(())
    }

    fn predict_batch(&mut self, batch: &Batch, output: &mut impl Write) -> Result<()> {
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        self.model.predict(&self.parameters, batch, &mut outputs)?;
        for row in outputs.chunks(self.schema.outputs()) {
            self.row(row, output).map_err(|error| unwritable(&error))?;
        }
        self.outputs = outputs;
        Ok(())
    }

    fn header(&self, output: &mut impl Write) -> Result<()> {
        match self.format {
            Format::Csv => self.names(output).map_err(|error| unwritable(&error)),
            Format::Jsonl => Ok(()),
        }
    }

    fn names(&self, output: &mut impl Write) -> io::Result<()> {
        match self.schema.task {
            _ if self.schema.reconstruct => {
                let names: Vec<String> = self.schema.names().iter().map(|name| quoted(name)).collect();
                writeln!(output, "{}", names.join(","))
            }
            Task::Regression => writeln!(output, "prediction"),
            Task::Classification => {
                write!(output, "prediction,probability")?;
                if self.every {
                    for class in &self.schema.classes {
                        write!(output, ",{}", quoted(&format!("p({class})")))?;
                    }
                }
                writeln!(output)
            }
        }
    }

    fn row(&self, row: &[f32], output: &mut impl Write) -> io::Result<()> {
        if self.schema.reconstruct {
            return self.reconstruction(row, output);
        }
        if self.schema.task == Task::Regression {
            let value = format_number(self.schema.target.invert(row[0]), self.schema.target.factor);
            return match self.format {
                Format::Csv => writeln!(output, "{value}"),
                Format::Jsonl => writeln!(output, "{{\"prediction\":{}}}", in_json(&value)),
            };
        }
        let best =
            row.iter().enumerate().fold(0, |best, (class, p)| if *p > row[best] { class } else { best });
        let class = self.schema.classes.get(best).map_or("?", String::as_str);
        if self.format == Format::Csv {
            write!(output, "{},{}", quoted(class), row[best])?;
            if self.every {
                row.iter().try_for_each(|probability| write!(output, ",{probability}"))?;
            }
            return writeln!(output);
        }
        let mut object = serde_json::json!({ "prediction": class, "probability": row[best] });
        if self.every {
            let all: serde_json::Map<String, serde_json::Value> =
                self.schema.classes.iter().cloned().zip(row.iter().map(|p| (*p).into())).collect();
            object["probabilities"] = all.into();
        }
        writeln!(output, "{object}")
    }
}

impl Predictor<'_> {
    /// The row that an auto-encoder reconstructs, in the units of the data.
    fn reconstruction(&self, row: &[f32], output: &mut impl Write) -> io::Result<()> {
        let scaling = &self.schema.scaling;
        let number = |(column, &value)| format_number(scaling.invert(column, value), scaling.factor(column));
        let fields: Vec<String> = row.iter().enumerate().map(number).collect();
        match self.format {
            Format::Csv => writeln!(output, "{}", fields.join(",")),
            Format::Jsonl => {
                let numbers: Vec<String> = fields.iter().map(|field| in_json(field)).collect();
                writeln!(output, "{{\"reconstruction\":[{}]}}", numbers.join(","))
            }
        }
    }
}

/// A number in the units of the data: in single precision, as the model computes, unless that loses digits that the
/// model resolves.
fn format_number(value: f64, factor: f32) -> String {
    let resolution = f64::from(f32::EPSILON) / f64::from(factor.abs());
    let single = value as f32;
    if !value.is_finite() || (f64::from(single) - value).abs() <= resolution {
        return single.to_string();
    }
    let decimals = (-resolution.log10()).ceil().clamp(0.0, 17.0) as usize;
    format!("{value:.decimals$}")
}

/// The number in JSON, which has no infinities; always with a decimal point, so that it is read as floating point.
fn in_json(number: &str) -> String {
    match number.parse::<f64>() {
        Ok(value) if !value.is_finite() => "null".into(),
        _ if number.contains('.') => number.into(),
        _ => format!("{number}.0"),
    }
}

/// A CSV field, quoted if necessary.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_the_model_resolves() {
        assert_eq!(format_number(f64::from(12.3f32), 1.0), "12.3");
        assert_eq!(format_number(0.1, 0.5), "0.1", "no digits that the model does not know");
        assert_eq!(format_number(1_700_000_123.25, 0.01), "1700000123.25000");
        assert_eq!(
            (in_json("12"), in_json("NaN"), in_json("0.5")),
            ("12.0".into(), "null".into(), "0.5".into())
        );
    }
}
