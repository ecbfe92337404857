//! Activation functions.

/// An activation function. Most derivatives are functions of the result, so that the backward pass keeps only results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// The identity.
    #[default]
    None,
    /// `max(x, 0)`; the derivative at 0 is 0.
    Relu,
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x` above 0, `x / 100` below.
    LeakyRelu,
    /// `x` above 0, `exp(x) - 1` below.
    Elu,
    /// `x * Phi(x)` with the normal distribution function `Phi`, by the tanh approximation.
    Gelu,
    /// `x * Phi(x)` by the error function: PyTorch's default.
    GeluErf,
}

impl Activation {
    /// The names in a layer list.
    pub const NAMES: [&'static str; 7] = ["relu", "tanh", "sigmoid", "leaky-relu", "elu", "gelu", "gelu-erf"];

    pub fn from_name(name: &str) -> Option<Activation> {
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

    /// Whether it never decreases. Both forms of GELU fall before they rise.
    pub fn is_monotonic(self) -> bool {
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

    /// Whether the derivative is a function of the input, not of the result.
    pub fn derivative_needs_input(self) -> bool {
        matches!(self, Activation::Gelu | Activation::GeluErf)
    }

    /// The name in a layer list; `None` for [`Activation::None`].
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
    fn names_round_trip() {
        for name in Activation::NAMES {
            assert_eq!(Activation::from_name(name).and_then(Activation::name), Some(name));
        }
        assert_eq!(Activation::from_name("none"), None);
    }
}
