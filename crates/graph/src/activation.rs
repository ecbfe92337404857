//! What a layer does to each of its numbers after the product.

/// A function of one number. Most slopes can be told from the result, so that only results are kept for the backward
/// pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// The number itself.
    #[default]
    None,
    /// `max(x, 0)`; its slope at 0 is 0.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x` above 0, `x / 100` below.
    LeakyRelu,
    /// `x` above 0, `exp(x) - 1` below.
    Elu,
    /// `x` times the share of a normal distribution below `x`, by the usual formula with tanh.
    Gelu,
    /// The same by the error function, as PyTorch has it by default.
    GeluErf,
}

impl Activation {
    /// The names a layer list may use.
    pub const NAMES: [&'static str; 7] = ["relu", "tanh", "sigmoid", "leaky-relu", "elu", "gelu", "gelu-erf"];

    /// The activation of that name.
    pub fn named(name: &str) -> Option<Activation> {
        match name {
            "relu" => Some(Activation::Relu),
            "tanh" => Some(Activation::Tanh),
            "sigmoid" => Some(Activation::Sigmoid),
            "leaky-relu" => Some(Activation::LeakyRelu),
            "elu" => Some(Activation::Elu),
            "gelu" => Some(Activation::Gelu),
            "gelu-erf" => Some(Activation::GeluErf),
            _ => None,
        }
    }

    /// Whether a larger number never gives a smaller one. Both forms of GELU fall before they rise.
    pub fn keeps_order(self) -> bool {
        match self {
            Activation::Gelu | Activation::GeluErf => false,
            Activation::None
            | Activation::Relu
            | Activation::Tanh
            | Activation::Sigmoid
            | Activation::LeakyRelu
            | Activation::Elu => true,
        }
    }

    /// Whether the slope is told from what the function took, not from what it gave.
    pub fn slope_needs_input(self) -> bool {
        matches!(self, Activation::Gelu | Activation::GeluErf)
    }

    /// The name used in a layer list; nothing for [`Activation::None`].
    pub fn name(self) -> Option<&'static str> {
        match self {
            Activation::None => None,
            Activation::Relu => Some("relu"),
            Activation::Tanh => Some("tanh"),
            Activation::Sigmoid => Some("sigmoid"),
            Activation::LeakyRelu => Some("leaky-relu"),
            Activation::Elu => Some("elu"),
            Activation::Gelu => Some("gelu"),
            Activation::GeluErf => Some("gelu-erf"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_gives_itself_back() {
        for name in Activation::NAMES {
            assert_eq!(Activation::named(name).and_then(Activation::name), Some(name));
        }
        assert_eq!(Activation::named("none"), None);
    }
}
