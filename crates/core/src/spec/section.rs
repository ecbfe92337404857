//! Sections of a job: one declaration gives the struct, its defaults, its documentation and its parser.

use super::layers::JobLayers;
use toml::Value;

/// A key of a job, for help, documentation and suggestions.
#[derive(Clone, Debug)]
pub struct Key {
    /// `train.global_batch`.
    pub path: String,
    pub doc: String,
    pub default: Option<Value>,
    /// The accepted values.
    pub expects: String,
    /// Allowed names and their descriptions, for enumerations.
    pub choices: &'static [(&'static str, &'static str)],
    /// Whether it is a table with user-defined keys.
    pub is_table: bool,
    /// Whether it is a list of strings.
    pub is_list: bool,
}

/// A group of keys with a common prefix.
pub trait Section: Default {
    /// `train`, or `train.optimizer`.
    const NAME: &'static str;
    /// One sentence of description.
    const ABOUT: &'static str;
    /// In the order of declaration.
    fn keys() -> Vec<Key>;
    /// Reads the section; every invalid value adds to `errors`.
    fn read(layers: &JobLayers, errors: &mut Vec<String>) -> Self;
    /// The values that are set, in the order of declaration.
    fn show(&self) -> Vec<(String, Value)>;
}

/// Declares a section: one line per key, with its documentation, type and default.
macro_rules! section {
    ($(#[doc = $about:literal])+ $section:literal $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr;)+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[doc = $doc])+ pub $field: $type,)+ }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)+ }
            }
        }

        impl $crate::spec::section::Section for $name {
            const NAME: &'static str = $section;
            const ABOUT: &'static str = concat!($($about),+).trim_ascii();

            fn keys() -> Vec<$crate::spec::section::Key> {
                use $crate::spec::setting::Setting;
                let defaults = Self::default();
                vec![$($crate::spec::section::Key {
                    path: concat!($section, ".", stringify!($field)).into(),
                    doc: concat!($($doc),+).trim().into(),
                    default: defaults.$field.show(),
                    expects: <$type>::expects(),
                    choices: <$type>::choices(),
                    is_table: <$type>::is_table(),
                    is_list: <$type>::is_list(),
                },)+]
            }

            fn read(layers: &$crate::spec::layers::JobLayers, errors: &mut Vec<String>) -> Self {
                let mut section = Self::default();
                $(layers.read(concat!($section, ".", stringify!($field)), &mut section.$field, errors);)+
                section
            }

            fn show(&self) -> Vec<(String, toml::Value)> {
                use $crate::spec::setting::Setting;
                let mut shown = Vec::new();
                $(if let Some(value) = self.$field.show() {
                    shown.push((concat!($section, ".", stringify!($field)).to_string(), value));
                })+
                shown
            }
        }
    };
}
pub(crate) use section;
