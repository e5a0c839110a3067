//! Names of many parameters in a few lines.

use candle_headroom_nn::modules::by_module;

fn lines(names: &[&str], others: &[&str]) -> Vec<String> {
    let groups = by_module(names.iter().copied(), others.iter().copied());
    groups.iter().map(ToString::to_string).collect()
}

#[test]
fn layers_are_one_line() {
    let layers: Vec<String> = (0..12)
        .flat_map(|layer| {
            ["a.weight", "b.bias", "b.weight", "c.w"].map(|p| format!("m.layers.{layer}.{p}"))
        })
        .chain(["m.norm.weight".to_owned(), "head".to_owned()])
        .collect();
    let names: Vec<&str> = layers.iter().map(String::as_str).collect();
    assert_eq!(
        lines(&names, &["m.norm.bias", "m.layers.12.d"]),
        [
            "head (1 of 1)",
            "m.layers.*: a.weight, b.bias, b.weight, … (48 of 49)",
            "m.norm: weight (1 of 2)",
        ]
    );
    // One layer alone keeps its number.
    assert_eq!(
        lines(&names[4..6], &names[6..10]),
        ["m.layers.1: a.weight, b.bias (2 of 4)"]
    );
}

#[test]
fn numbers_end_a_part_of_the_path() {
    assert_eq!(
        lines(&["block0.qkv.weight", "block1.qkv.weight"], &[]),
        ["block*: qkv.weight (2 of 2)"]
    );
    // The last part names the parameter.
    assert_eq!(
        lines(&["lstm.weight_hh_l0", "lstm.weight_ih_l1"], &[]),
        ["lstm: weight_hh_l0, weight_ih_l1 (2 of 2)"]
    );
    assert_eq!(lines(&["0", "1", "10"], &["2"]), ["Var: 0, 1, 10 (3 of 4)"]);
    assert_eq!(
        lines(&["w1", "w1.bias"], &["w1.scale"]),
        ["w1 (1 of 1)", "w1: bias (1 of 2)"]
    );
}

#[test]
fn odd_names_are_kept() {
    assert_eq!(
        lines(&["", "a..b", "x.007.y"], &[]),
        [" (1 of 1)", "a.: b (1 of 1)", "x.007: y (1 of 1)"]
    );
    assert_eq!(lines(&["π.2.ß"], &[]), ["π.2: ß (1 of 1)"]);
}
