//! `[data]`: what is trained on.

use super::delimiter::Delimiter;
use super::section::section;
use super::setting::{Auto, Bytes, ColumnRef, Held, choice};

choice! {
    /// What is learned from the label.
    TaskChoice {
        /// Numbers with many different values are a regression, everything else classes.
        Auto = "auto",
        /// One of several classes.
        Classification = "classification",
        /// A number.
        Regression = "regression",
    }
}

choice! {
    /// How numbers are scaled before the model sees them, fitted on the training rows.
    Scale {
        /// Images divided by 255, tables standardised, sparse and text left alone.
        Auto = "auto",
        /// As they are.
        None = "none",
        /// To 0..1 by each column's smallest and largest value.
        Minmax = "minmax",
        /// To mean 0 and deviation 1.
        Standard = "standard",
    }
}

choice! {
    /// What to do about a missing value.
    Missing {
        /// Refuse it, naming file, row and column.
        Error = "error",
        /// Numbers get the column's mean, categories a category of their own.
        Mean = "mean",
        /// Numbers get 0, categories a category of their own.
        Zero = "zero",
    }
}

section! {
    /// What is trained on.
    "data" DataSpec {
        /// Where the rows come from: builtin:digits, an IDX folder, or files (.csv, .tsv, .libsvm, .parquet, .txt; globs and .gz too).
        source: String = "builtin:digits".into();
        /// The column to predict, by name or number (-1 is the last).
        label: Option<ColumnRef> = None;
        /// Whether the first line of a table names its columns.
        header: Auto<bool> = Auto::Auto;
        /// What separates the columns of a table (auto: looked up in its first lines).
        delimiter: Auto<Delimiter> = Auto::Auto;
        /// Columns whose values are categories even if they look like numbers.
        categorical: Vec<String> = Vec::new();
        /// Columns to leave out.
        ignore: Vec<String> = Vec::new();
        /// What to do about a missing value (an empty field, ? or a word such as NA, NaN, null, None or #N/A).
        missing: Missing = Missing::Error;
        /// What is learned: classes or a number.
        task: TaskChoice = TaskChoice::Auto;
        /// How numbers are scaled, fitted on the training rows and stored with the model.
        scale: Scale = Scale::Auto;
        /// Characters a row of a text shows.
        window: usize = 32;
        /// The rows kept for validation: a share, drawn by seed, or a source of its own.
        validation: Option<Held> = None;
        /// Memory a rank may use for rows; larger sources stream from disk in blocks.
        memory: Bytes = Bytes(1 << 30);
        /// Where large compressed sources are unpacked and indexed once (default: the user's cache folder).
        cache: Option<String> = None;
        /// The most that stays in that folder: what was not used for longest goes first, and no file is unpacked beyond it.
        cache_limit: Bytes = Bytes(64 << 30);
    }
}

/// The share of rows that validates if the job does not say.
pub const VALIDATION_SHARE: f64 = 0.2;
