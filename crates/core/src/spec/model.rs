//! `[model]`: what is trained.

use super::layers::Layers;
use super::section::{Section, section};
use super::setting::choice;

choice! {
    /// Networks by name, for the shape of the data at hand.
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
    /// What a model is blamed for.
    LossChoice {
        /// What suits the task: cross-entropy for classes, squared for a number, reconstruction for an auto-encoder.
        Auto = "auto",
        /// Of a softmax over the classes (classification).
        CrossEntropy = "cross-entropy",
        /// Of a sigmoid per class, the mean over the classes (classification).
        BinaryCrossEntropy = "binary-cross-entropy",
        /// How far each wrong class comes within 1 of the right one, the mean over the classes (classification).
        Hinge = "hinge",
        /// The square of the distance (regression).
        Squared = "squared",
        /// The distance (regression).
        Absolute = "absolute",
        /// Half the square up to a distance of 1, then the distance less a half (regression).
        Huber = "huber",
        /// The squared distance from the row itself: an auto-encoder. Labels are not looked at.
        Reconstruction = "reconstruction",
    }
}

choice! {
    /// Whose rows batch normalisation looks at.
    BatchStatistics {
        /// Of all workers, summed on the way: any number of workers gives the same result.
        Synchronized = "synchronized",
        /// Of each worker by itself: nothing is exchanged, and the result depends on the number of workers.
        Local = "local",
    }
}

section! {
    /// What is trained: `layers`, a network of the zoo, or an ONNX file.
    "model" ModelSpec {
        /// Layers in order, such as "dense 128 relu" or "conv 32 5x5 relu"; UNITS of a last dense layer may be auto: what the data asks for.
        layers: Vec<String> = vec!["dense 128 relu".into(), "dense auto".into()];
        /// A network by name instead of layers.
        zoo: Option<Zoo> = None;
        /// An ONNX file instead of layers, as PyTorch exports it: training begins with its weights.
        onnx: Option<String> = None;
        /// What it is blamed for.
        loss: LossChoice = LossChoice::Auto;
        /// Whose rows batch normalisation looks at, unless a layer says `local` or `synchronized` itself.
        batchnorm: BatchStatistics = BatchStatistics::Synchronized;
    }
}

impl ModelSpec {
    /// The keys that say what the model is. A job says one of them; the first is what it says if it says none.
    pub const SOURCES: [&'static str; 3] = ["model.layers", "model.zoo", "model.onnx"];

    /// Which of them counts.
    pub fn source(&self) -> &'static str {
        let [layers, zoo, onnx] = ModelSpec::SOURCES;
        match (self.zoo, &self.onnx) {
            (Some(_), _) => zoo,
            (None, Some(_)) => onnx,
            (None, None) => layers,
        }
    }

    /// Whether the model is to answer with the row itself.
    pub fn reconstructs(&self) -> bool {
        self.loss == LossChoice::Reconstruction || self.zoo.is_some_and(Zoo::reconstructs)
    }

    /// Complaints about a model said twice, and about losses that cannot judge it.
    pub(super) fn check(&self, layers: &Layers, complaints: &mut Vec<String>) {
        let said =
            ModelSpec::SOURCES.iter().filter_map(|key| layers.get(key).map(|(_, origin)| (key, origin)));
        let said: Vec<_> = said.collect();
        if let [(first, _), .., (last, origin)] = said.as_slice() {
            complaints.push(format!(
                "{origin}: {last}: {first} says what the model is already; drop one of the two"
            ));
        }
        if self.layers.is_empty() {
            let key = ModelSpec::SOURCES[0];
            complaints.push(format!("{}: {key}: must have at least one layer", layers.origin(key)));
        }
        if let Some(zoo) = self.zoo
            && zoo.reconstructs()
            && !matches!(self.loss, LossChoice::Auto | LossChoice::Reconstruction)
        {
            let path = format!("{}.loss", Self::NAME);
            complaints.push(format!(
                "{}: {path}: `{}` judges answers by labels, but `{}` makes its own input again; drop the key",
                layers.origin(&path),
                self.loss.name(),
                zoo.name()
            ));
        }
    }
}

impl Zoo {
    /// Whether it is an auto-encoder.
    pub fn reconstructs(self) -> bool {
        matches!(self, Zoo::Autoencoder | Zoo::AutoencoderConv)
    }
}
