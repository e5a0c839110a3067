//! Frozen groups: they cost nothing, and get their state when they are thawed.

use super::*;

/// Two groups, of 12 and of 20 elements.
fn groups(dtype: DType) -> [Vec<(&'static str, Var)>; 2] {
    let vars = make_vars(&[&[3, 4], &[20]], dtype);
    [vec![("a", vars[0].clone())], vec![("b", vars[1].clone())]]
}

fn names<A: Algorithm>(optimizer: &Fused<A>) -> Vec<&str> {
    let parameters = optimizer.parameters().iter();
    parameters
        .map(|parameter| parameter.name.as_str())
        .collect()
}

fn set_frozen<A: Algorithm>(optimizer: &mut Fused<A>, group: usize, frozen: bool) {
    let options = optimizer.groups()[group].frozen(frozen);
    optimizer.set_group(group, options).unwrap();
}

#[test]
fn frozen_groups_have_no_state() {
    let [a, b] = groups(DType::BF16);
    let builder = AdamW::builder(Group::from(a).frozen()).group(b);
    let mut optimizer = builder.master_weights().build().unwrap();
    // Two moments and a master, 4 bytes each.
    let bytes = |elements: u64| 12 * elements;
    assert_eq!(
        (optimizer.state_bytes(), names(&optimizer)),
        (bytes(20), vec!["b"])
    );
    assert!(
        optimizer
            .state()
            .unwrap()
            .tensors
            .keys()
            .all(|name| name.starts_with("b."))
    );

    set_frozen(&mut optimizer, 0, false);
    assert_eq!(
        (optimizer.state_bytes(), names(&optimizer)),
        (bytes(32), vec!["a", "b"])
    );
    assert!(optimizer.state().unwrap().tensors.contains_key("a.master"));
    set_frozen(&mut optimizer, 1, true);
    assert_eq!(
        (optimizer.state_bytes(), names(&optimizer)),
        (bytes(12), vec!["a"])
    );
    set_frozen(&mut optimizer, 0, true);
    assert_eq!((optimizer.state_bytes(), names(&optimizer)), (0, vec![]));
    assert_eq!(
        optimizer.commit(&GradStore::default()).unwrap(),
        Committed::Applied
    );
    assert!(optimizer.state().unwrap().tensors.is_empty());
}

/// The loss falls on after a thaw, and further than without.
#[test]
fn the_loss_goes_on_after_a_thaw() {
    let [a, b] = groups(DType::F32);
    let (x, y) = (a[0].1.clone(), b[0].1.clone());
    let builder = AdamW::builder(Group::from(a).frozen()).group(b);
    let mut optimizer = builder.learning_rate(0.05).build().unwrap();
    let train = |optimizer: &mut AdamW| {
        let loss = || {
            (x.sqr()?.sum_all()? + y.sqr()?.sum_all()?)
                .unwrap()
                .to_scalar::<f32>()
        };
        let before = loss().unwrap();
        for _ in 0..200 {
            let loss = (x.sqr().unwrap().sum_all().unwrap() + y.sqr().unwrap().sum_all().unwrap())
                .unwrap();
            optimizer.backward_step(&loss).unwrap();
        }
        (before, loss().unwrap())
    };
    let still = flat(&x);
    let (start, frozen) = train(&mut optimizer);
    assert_eq!(flat(&x), still);
    set_frozen(&mut optimizer, 0, false);
    let (thawed, end) = train(&mut optimizer);
    assert!(
        frozen < start && thawed == frozen && end < frozen / 100.,
        "{start} {frozen} {end}"
    );
}

/// No memory for a thawed group's state: nothing has changed, and training goes on.
#[test]
fn a_thaw_that_fails_changes_nothing() {
    let [a, b] = groups(DType::F32);
    let vars = [a[0].1.clone(), b[0].1.clone()];
    let twins = copies(&vars);
    let builder = AdamW::builder(Group::from(a).frozen()).group(b);
    let mut optimizer = builder.build().unwrap();
    let mut twin = AdamW::builder(twins[1..].to_vec()).build().unwrap();
    optimizer.commit(&gradients(&vars, 0)).unwrap();
    twin.commit(&gradients(&twins, 0)).unwrap();
    let before = (optimizer.state_bytes(), optimizer.groups().to_vec());
    let thawed = optimizer.groups()[0].frozen(false);
    let armed = Faults::in_phase(Phase::Optimizer, 0).arm();
    let error = optimizer.set_group(0, thawed).unwrap_err();
    assert!(matches!(error, Error::ResourceExhausted(_)), "{error}");
    drop(armed);
    assert_eq!(
        before,
        (optimizer.state_bytes(), optimizer.groups().to_vec())
    );
    assert_eq!(names(&optimizer), ["b"]);
    optimizer.commit(&gradients(&vars, 1)).unwrap();
    twin.commit(&gradients(&twins, 1)).unwrap();
    assert_eq!(bits(&vars), bits(&twins));
}

/// State of another group that is frozen and thawed in between does not touch a group's own.
#[test]
fn other_groups_keep_their_state() {
    fn check<A: Algorithm>(params: A) {
        let vars = make_vars(&[&[LARGE], &[7], &[4, 5]], DType::F32);
        let twins = copies(&vars);
        let one = |i: usize| Group::from(vec![vars[i].clone()]);
        let builder = Fused::builder(one(0)).params(params.clone());
        let mut optimizer = builder.group(one(1)).group(one(2)).build().unwrap();
        let mut twin = Fused::builder(twins[1..2].to_vec())
            .params(params)
            .build()
            .unwrap();
        for step in 0..6 {
            set_frozen(&mut optimizer, 0, step % 2 == 0);
            set_frozen(&mut optimizer, 2, step % 3 == 0);
            optimizer.commit(&gradients(&vars, step)).unwrap();
            twin.commit(&gradients(&twins, step)).unwrap();
            assert_eq!(bits(&vars[1..2]), bits(&twins[1..2]), "step {step}");
        }
    }
    for_each_algorithm!(|params| check(params));
}

/// Saved state says which groups are frozen, and the optimizer that loads it does as it says.
#[test]
fn saved_state_freezes_and_thaws() {
    let build = |is_frozen: bool| {
        let [a, b] = groups(DType::F32);
        let a = Group::from(a);
        let a = if is_frozen { a.frozen() } else { a };
        AdamW::builder(a).group(b).build().unwrap()
    };
    let (mut frozen, mut thawed) = (build(true), build(false));
    frozen.load_state(&thawed.state().unwrap()).unwrap();
    assert_eq!(
        (frozen.state_bytes(), names(&frozen)),
        (8 * 32, vec!["a", "b"])
    );
    set_frozen(&mut thawed, 0, true);
    frozen.load_state(&thawed.state().unwrap()).unwrap();
    assert_eq!((frozen.state_bytes(), names(&frozen)), (8 * 20, vec!["b"]));

    // As PyTorch's files: no word of groups, and state of a parameter that is frozen here.
    let mut all = build(false).state().unwrap();
    all.metadata.clear();
    frozen.load_state(&all).unwrap();
    assert_eq!(names(&frozen), ["b"]);
}

/// A frozen base of a type that the options are not for, beside adapters that they are for.
#[test]
fn options_are_not_for_frozen_groups() {
    type Options = fn(FusedBuilder<ParamsAdamW>) -> FusedBuilder<ParamsAdamW>;
    let cases: [(DType, Options); 3] = [
        (DType::F16, |b| b.stochastic_rounding()),
        (DType::F64, |b| b.moments(Moments::EightBit)),
        (DType::F64, |b| b.moments(DType::BF16)),
    ];
    for (dtype, options) in cases {
        let ([base, _], [_, adapters]) = (groups(dtype), groups(DType::BF16));
        let vars = [base[0].1.clone(), adapters[0].1.clone()];
        let build = |base: Group| options(AdamW::builder(base).group(adapters.clone())).build();
        let refused = optimizer_error(build(base.clone().into()).unwrap_err());
        let mut optimizer = build(Group::from(base.clone()).frozen()).unwrap();
        let before = flat(&vars[0]);
        optimizer.commit(&gradients(&vars, 0)).unwrap();
        assert_eq!(flat(&vars[0]), before);

        // Thawed they are refused, and nothing has changed.
        let state = optimizer.state().unwrap();
        let thawed = optimizer.groups()[0].frozen(false);
        let error = optimizer.set_group(0, thawed).unwrap_err();
        assert_eq!(optimizer_error(error), refused);
        let plain = AdamW::builder(base).group(adapters).build().unwrap();
        let error = optimizer.load_state(&plain.state().unwrap()).unwrap_err();
        assert_eq!(optimizer_error(error), refused);
        assert!(optimizer.groups()[0].frozen);
        assert_eq!(names(&optimizer), ["b"]);
        let after = optimizer.state().unwrap();
        assert_eq!(after.metadata, state.metadata);
        assert_eq!(after.tensors.len(), state.tensors.len());
        optimizer.commit(&gradients(&vars, 1)).unwrap();
    }
}
