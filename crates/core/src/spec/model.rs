//! `[model]`: the network and its loss.

use super::layers::JobLayers;
use super::section::{Section, section};
use super::setting::choice;

choice! {
    /// Predefined networks, sized for the data.
    Zoo {
        /// One hidden layer of 128 with ReLU (any rows).
        Mlp = "mlp",
        /// Two 5x5 convolutions and a hidden layer of 512 (images).
        Lenet = "lenet",
        /// Three stages of residual blocks with batch normalisation (images).
        ResnetSmall = "resnet-small",
        /// Characters as vectors of 128, an LSTM of 256 (text).
        CharLstm = "char-lstm",
        /// Four transformer blocks of width 128 with four heads (text).
        GptMini = "gpt-mini",
        /// Dense layers down to 32 numbers and back to the row (tables and images).
        Autoencoder = "autoencoder",
        /// Convolutions down to a quarter of the sides and back to the image (images).
        AutoencoderConv = "autoencoder-conv",
    }
}

choice! {
    /// Loss functions.
    LossChoice {
        /// By the task: cross-entropy for classification, squared for regression, reconstruction for an auto-encoder.
        Auto = "auto",
        /// Cross-entropy of a softmax over the classes (classification).
        CrossEntropy = "cross-entropy",
        /// Cross-entropy of a sigmoid per class, the mean over the classes (classification).
        BinaryCrossEntropy = "binary-cross-entropy",
        /// Multi-class hinge with margin 1, the mean over the classes (classification).
        Hinge = "hinge",
        /// Squared error (regression).
        Squared = "squared",
        /// Absolute error (regression).
        Absolute = "absolute",
        /// Huber loss with delta 1 (regression).
        Huber = "huber",
        /// Squared error against the row itself: an auto-encoder. Labels are ignored.
        Reconstruction = "reconstruction",
    }
}

choice! {
    /// Weight initialization.
    Initialization {
        /// Uniform, bounded by sqrt(6 / (inputs + outputs)): for tanh, sigmoid and linear layers (Glorot and Bengio 2010).
        GlorotUniform = "glorot-uniform",
        /// Normal, with variance 2 / (inputs + outputs).
        GlorotNormal = "glorot-normal",
        /// Uniform, bounded by sqrt(6 / inputs): for ReLU and its variants (He et al. 2015).
        HeUniform = "he-uniform",
        /// Normal, with variance 2 / inputs.
        HeNormal = "he-normal",
        /// Uniform, bounded by sqrt(3 / inputs) (LeCun et al. 1998).
        LecunUniform = "lecun-uniform",
        /// Normal, with variance 1 / inputs.
        LecunNormal = "lecun-normal",
    }
}

choice! {
    /// The rows over which batch normalisation computes statistics.
    BatchStatistics {
        /// The rows of all workers, all-reduced: the result does not depend on the number of workers.
        Synchronized = "synchronized",
        /// The rows of each worker: no exchange, and the result depends on the number of workers. With an all-reduce of gradients the running statistics are those of rank 0.
        Local = "local",
    }
}

section! {
    /// The network: `layers`, a network of the zoo, or an ONNX file.
    "model" ModelSpec {
        /// Layers in order, such as "dense 128 relu" or "conv 32 5x5 relu"; the units of a last dense layer may be auto: the number of outputs of the task.
        layers: Vec<String> = vec!["dense 128 relu".into(), "dense auto".into()];
        /// A predefined network instead of layers.
        zoo: Option<Zoo> = None;
        /// An ONNX file, as PyTorch exports it, instead of layers: training starts from its weights.
        onnx: Option<String> = None;
        /// The loss function.
        loss: LossChoice = LossChoice::Auto;
        /// Initialization of dense, convolution and attention weights; other layers have their own, and an ONNX file brings its weights.
        initializer: Initialization = Initialization::GlorotUniform;
        /// The rows of batch statistics, unless a layer sets `local` or `synchronized` itself.
        batchnorm: BatchStatistics = BatchStatistics::Synchronized;
    }
}

impl Default for Initialization {
    fn default() -> Initialization {
        ModelSpec::default().initializer
    }
}

impl ModelSpec {
    /// The keys that define the network. A job sets at most one; without any, the default of the first applies.
    pub(super) const SOURCES: [&'static str; 3] = ["model.layers", "model.zoo", "model.onnx"];

    /// The key that applies.
    pub fn source(&self) -> &'static str {
        let [layers, zoo, onnx] = ModelSpec::SOURCES;
        match (self.zoo, &self.onnx) {
            (Some(_), _) => zoo,
            (None, Some(_)) => onnx,
            (None, None) => layers,
        }
    }

    /// Whether the target is the row itself.
    pub fn reconstructs(&self) -> bool {
        self.loss == LossChoice::Reconstruction || self.zoo.is_some_and(Zoo::reconstructs)
    }

    pub(super) fn check(&self, layers: &JobLayers, errors: &mut Vec<String>) {
        let set =
            ModelSpec::SOURCES.iter().filter_map(|key| layers.get(key).map(|(_, origin)| (key, origin)));
        let set: Vec<_> = set.collect();
        if let [(first, _), .., (last, origin)] = set.as_slice() {
            errors.push(format!("{origin}: {last}: {first} defines the model already; drop one of the two"));
        }
        if self.layers.is_empty() {
            let key = ModelSpec::SOURCES[0];
            errors.push(format!("{}: {key}: must have at least one layer", layers.origin(key)));
        }
        if let Some(zoo) = self.zoo
            && zoo.reconstructs()
            && !matches!(self.loss, LossChoice::Auto | LossChoice::Reconstruction)
        {
            let path = format!("{}.loss", Self::NAME);
            errors.push(format!(
                "{}: {path}: `{}` compares outputs with labels, but `{}` reconstructs its input; drop the key",
                layers.origin(&path),
                self.loss.name(),
                zoo.name()
            ));
        }
    }
}

impl Zoo {
    pub fn reconstructs(self) -> bool {
        matches!(self, Zoo::Autoencoder | Zoo::AutoencoderConv)
    }
}
