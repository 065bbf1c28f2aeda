//! Classification: packets go to outputs by their contents.

use crate::element::Class;

mod classifier;
pub(super) mod flow_rules;
mod ip_filter;
pub(super) mod lanes;
mod sdn_classifier;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<classifier::Classifier>("Classifier", "1/-", "h", "sends packets to outputs by bytes at offsets"),
    Class::new::<ip_filter::IpClassifier>("IPClassifier", "1/-", "h", "sends IP packets to outputs by their headers"),
    Class::new::<ip_filter::IpFilter>(
        "IPFilter",
        "1/-",
        "h",
        "lets IP packets through, or drops them, by their headers",
    ),
    Class::new::<sdn_classifier::SdnClassifier>(
        "SDNClassifier",
        "1/1-",
        "h",
        "sends packets to outputs by thousands of rules over many fields, which change while it runs",
    ),
];
