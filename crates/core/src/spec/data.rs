//! `[data]`: the training data.

use super::delimiter::Delimiter;
use super::section::section;
use super::setting::{Auto, Bytes, ColumnRef, HeldOut, choice};

choice! {
    /// The learning task.
    TaskChoice {
        /// Regression if the label has many different numbers, else classification.
        Auto = "auto",
        /// Predicts one of several classes.
        Classification = "classification",
        /// Predicts a number.
        Regression = "regression",
    }
}

choice! {
    /// Scaling of the inputs, fitted on the training rows.
    Scale {
        /// Images are divided by 255, tables are standardised, sparse and text data are not scaled.
        Auto = "auto",
        /// No scaling.
        None = "none",
        /// To 0..1 by the minimum and maximum of each column.
        Minmax = "minmax",
        /// To mean 0 and standard deviation 1.
        Standard = "standard",
    }
}

choice! {
    /// Handling of missing values.
    Missing {
        /// Refuse them, naming file, row and column.
        Error = "error",
        /// Numbers get the column's mean, categories a category of their own.
        Mean = "mean",
        /// Numbers get 0, categories a category of their own.
        Zero = "zero",
    }
}

section! {
    /// The training data.
    "data" DataSpec {
        /// Source of the rows: builtin:digits, an IDX folder, or files (.csv, .tsv, .libsvm, .parquet, .txt; globs and .gz too).
        source: String = "builtin:digits".into();
        /// The column to predict, by name or number (-1 is the last).
        label: Option<ColumnRef> = None;
        /// Whether the first line of a table names its columns.
        header: Auto<bool> = Auto::Auto;
        /// Column separator of a table (auto: detected in its first lines).
        delimiter: Auto<Delimiter> = Auto::Auto;
        /// Columns to treat as categories even if their values are numbers.
        categorical: Vec<String> = Vec::new();
        /// Columns to leave out.
        ignore: Vec<String> = Vec::new();
        /// Handling of missing values (an empty field, ? or a marker such as NA, NaN, null, None or #N/A).
        missing: Missing = Missing::Error;
        /// The learning task.
        task: TaskChoice = TaskChoice::Auto;
        /// Scaling of the inputs, fitted on the training rows and stored with the model.
        scale: Scale = Scale::Auto;
        /// Characters per row of a text.
        window: usize = 32;
        /// The validation rows: a share of the source, drawn by seed, or another source.
        validation: Option<HeldOut> = None;
        /// Memory of a rank for rows; larger sources are read from disk in blocks.
        memory: Bytes = Bytes(1 << 30);
        /// Folder in which large compressed sources are unpacked and indexed once (default: the user's cache folder).
        cache: Option<String> = None;
        /// Size limit of that folder: the least recently used files are removed first, and no file is unpacked beyond it.
        cache_limit: Bytes = Bytes(64 << 30);
    }
}

/// Default share of validation rows.
pub const VALIDATION_SHARE: f64 = 0.2;
