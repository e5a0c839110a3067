//! What remedies say that models in f16 and bf16 would save: tried.

use super::*;

type Builder = FusedBuilder<ParamsAdamW>;
type Options = fn(Builder) -> Builder;

/// Groups of these types, of which the first may be frozen.
fn builder(dtypes: &[DType], is_frozen: bool) -> Builder {
    let groups = dtypes.iter().enumerate().map(|(i, dtype)| {
        let vars = make_vars(&[&[64, 80], &[7]], *dtype).into_iter();
        let named = vars.enumerate().map(|(j, var)| (format!("{i}.{j}"), var));
        Group::from(Vec::from_iter(named))
    });
    let mut groups = groups.collect::<Vec<_>>().into_iter();
    let first = groups.next().unwrap();
    let first = if is_frozen { first.frozen() } else { first };
    groups.fold(AdamW::builder(first), |builder, group| builder.group(group))
}

#[test]
fn each_saves_the_bytes_that_it_says() {
    const RANDOM: &str = "`stochastic_rounding()` in place of `master_weights()`";
    let tried: [(&str, Options); 3] = [
        ("moments in bf16", |b| b.moments(DType::BF16)),
        ("moments of 8 bits", |b| b.moments(Moments::EightBit)),
        (RANDOM, |b| b.stochastic_rounding()),
    ];
    let [full, half, brain] = [DType::F32, DType::F16, DType::BF16];
    for (dtypes, is_frozen, rounds) in [
        (&[brain] as &[_], false, true),
        (&[full, brain], false, true),
        // Nothing to round.
        (&[full], false, false),
        // f16 cannot be rounded so, but a frozen base is not.
        (&[half], false, false),
        (&[half, brain], false, false),
        (&[half, brain], true, true),
        (&[brain, full], true, false),
    ] {
        let masters = || builder(dtypes, is_frozen).master_weights();
        let now = masters().build().unwrap();
        let remedies = Commit::remedies(&now);
        for (advice, option) in tried {
            let said = remedies.iter().find(|remedy| remedy.advice == advice);
            assert_eq!(said.is_some(), rounds || advice != RANDOM, "{remedies:?}");
            if let Some(remedy) = said {
                let then = option(masters()).build().unwrap();
                let saved = now.state_bytes() - then.state_bytes();
                assert_eq!(remedy.saves, Some(saved), "{advice} {dtypes:?}");
            }
        }
        for option in [tried[2].1, |b| b] {
            let Ok(without) = option(builder(dtypes, is_frozen)).build() else {
                continue;
            };
            let remedies = Commit::remedies(&without);
            let is_advised = remedies.iter().any(|remedy| remedy.advice == RANDOM);
            assert!(!is_advised, "there are no masters: {remedies:?}");
        }
    }
}
