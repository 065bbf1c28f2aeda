use super::*;
use crate::Timestamp;
use std::net::Ipv4Addr;

fn read(config: &str, work: impl FnOnce(&mut Args<'_>) -> Result<(), Failed>) -> Result<(), String> {
    let (names, mut log) = (NameDb::default(), Log::new());
    let cx = ArgCx { elements: &NoElements, names: &names, element: "a/b" };
    let result = work(&mut Args::new(config, cx, &mut log));
    assert_eq!(result.is_err(), log.errors() > 0);
    if result.is_ok() { Ok(()) } else { Err(log.to_string()) }
}

#[test]
fn arguments_come_by_position_or_by_keyword() {
    for config in ["5, 3", "5, LIMIT 3", "N 5, LIMIT 3", "LIMIT 3, N 5", "7, 3, N 5", "5, LIMIT 7, LIMIT 3"] {
        let (mut n, mut limit) = (0u32, 0u8);
        let done = read(config, |args| args.must("N", &mut n).may("LIMIT", &mut limit).finish());
        assert_eq!((done, n, limit), (Ok(()), 5, 3), "{config}");
    }
}

#[test]
fn positions_end_where_keywords_begin() {
    let (mut n, mut limit) = (0u32, 0u8);
    let told = read("N 5, 3", |args| args.must("N", &mut n).may("LIMIT", &mut limit).finish());
    assert_eq!(told.unwrap_err(), "too many arguments\n");
    // A required argument is taken from its position, whatever it looks like.
    let told = read("LIMIT 3, 5", |args| args.must("N", &mut n).may("LIMIT", &mut limit).finish());
    assert_eq!(told.unwrap_err(), "N: invalid number\n");
}

#[test]
fn every_error_is_told_by_its_keyword() {
    let (mut n, mut limit, mut flag) = (0u32, 0u8, false);
    let mut read = |config: &str| {
        read(config, |args| args.must("N", &mut n).may("LIMIT", &mut limit).key("FLAG", &mut flag).finish())
    };
    assert_eq!(read("").unwrap_err(), "N: required argument missing\n");
    assert_eq!(
        read("x, 300, FLAG maybe, OTHER 5, 1").unwrap_err(),
        concat!(
            "N: invalid number\nLIMIT: out of range, bound 255\nFLAG: type mismatch\n",
            "OTHER: unknown argument\ntoo many arguments\n"
        )
    );
    assert_eq!(read("0x10, 017, FLAG yes"), Ok(()));
    assert_eq!((n, limit, flag), (16, 15, true));
}

fn parse<T: Arg>(text: &str) -> Result<T, String> {
    T::parse(text, &ArgCx { elements: &NoElements, names: &NameDb::default(), element: "x" })
}

#[test]
fn values_have_units() {
    let nanos = |text| parse::<Interval>(text).map(|interval| interval.0.nanos());
    assert_eq!(nanos("1.5"), Ok(1_500_000_000));
    assert_eq!(nanos("10ms"), Ok(10_000_000));
    assert_eq!(nanos("2 h"), Ok(7_200_000_000_000));
    assert_eq!(nanos(".25us"), Ok(250));
    assert!(
        nanos("1.2.3").is_err() && nanos("").is_err() && nanos("5 parsec").is_err() && nanos("99999999999").is_err()
    );
    assert_eq!(parse::<Bandwidth>("8 Mbps"), Ok(Bandwidth(1_000_000)));
    assert_eq!(parse::<Bandwidth>("10KB/s"), Ok(Bandwidth(10_000)));
    assert_eq!(parse::<Timestamp>("1.0000000019"), Ok(Timestamp::from_nanos(1_000_000_001)));
    assert_eq!(parse::<Amount>("-1"), Ok(Amount(None)));
}

#[test]
fn addresses_have_masks_and_names() {
    let prefix: Prefix = parse("10.1/16").unwrap();
    assert!(prefix.contains(Ipv4Addr::new(10, 1, 2, 3)) && !prefix.contains(Ipv4Addr::new(10, 2, 2, 3)));
    assert_eq!(prefix.len(), Some(16));
    assert_eq!(parse::<Prefix>("0.0.0.0/0").unwrap().len(), Some(0));
    assert_eq!(parse::<Prefix>("1.2.3.4").unwrap().len(), Some(32));
    assert_eq!(parse::<Prefix>("1.2.3.4/255.0.255.0").unwrap().len(), None);
    assert!(parse::<Prefix>("1.2.3.4/33").is_err());
    let mut names = NameDb::default();
    names.define(NameKind::IpAddress, "me", &[1, 2, 3, 4]);
    names.define(NameKind::IpAddress, "a/me", &[5, 6, 7, 8]);
    for (element, address) in [("b/x", [1, 2, 3, 4]), ("a/x", [5, 6, 7, 8]), ("a/b/x", [5, 6, 7, 8])] {
        let cx = ArgCx { elements: &NoElements, names: &names, element };
        assert_eq!(Ipv4Addr::parse("me", &cx), Ok(Ipv4Addr::from(address)), "{element}");
    }
}

#[test]
fn annotations_are_checked_for_their_length() {
    assert_eq!(parse("PAINT"), Ok(AnnoArg::<1>(16)));
    assert_eq!(parse("20"), Ok(AnnoArg::<4>(20)));
    assert!(
        parse::<AnnoArg<1>>("DST_IP").is_err()
            && parse::<AnnoArg<4>>("46").is_err()
            && parse::<AnnoArg<4>>("4/2").is_err()
    );
}

#[test]
fn one_argument_is_changed_and_the_others_stay() {
    for (config, changed, read) in [
        ("", "CAPACITY 10", None),
        ("5", "10", Some("5")),
        ("5, X 3", "10, X 3", Some("5")),
        ("CAPACITY 5", "CAPACITY 10", Some("5")),
        ("X 3, CAPACITY  5", "X 3, CAPACITY 10", Some("5")),
        ("X 3, 5", "X 3, 5, CAPACITY 10", None),
    ] {
        assert_eq!(with_argument(config, 0, "CAPACITY", "10"), changed, "{config}");
        assert_eq!(argument(config, 0, "CAPACITY").as_deref(), read, "{config}");
    }
    assert_eq!(with_argument("5, 50, 0.02", 1, "MAX", "60"), "5, 60, 0.02");
}
