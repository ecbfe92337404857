use super::*;
use thalweg_cluster::AllReduceMethod;
use thalweg_core::spec::setting::Setting;
use thalweg_core::spec::strategy;

#[test]
fn every_strategy_has_dials_and_a_name_of_its_own() {
    for (index, one) in all().enumerate() {
        for other in all().skip(index + 1) {
            assert!(one.name != other.name && one.dials != other.dials, "{} twice", one.name);
        }
    }
    assert_eq!(of(&JobSpec::default()).name, "allreduce");
}

#[test]
fn every_name_of_the_job_is_an_algorithm_but_auto() {
    for (name, _) in strategy::Algorithm::choices() {
        assert_eq!(AllReduceMethod::named(name).is_none(), *name == "auto", "{name}");
    }
    assert_eq!(strategy::Algorithm::choices().len(), AllReduceMethod::all().count() + 1);
}
