/* The S-boxes of AES as circuits: no table is looked up, so that neither time nor addresses depend on
 * data.
 *
 * The multiplicative part is Boyar and Peralta's inversion in a tower field ("A small depth-16
 * circuit for the AES S-box", 2012). The linear layers around it were factored anew for both
 * directions, and the whole was mapped to functions of three inputs, which NVIDIA's GPUs compute in
 * one instruction: 77 of them forwards and 79 backwards for 32 bytes. The tests try all 256 bytes.
 */
#ifndef BIFOLIO_AES_SBOX_H
#define BIFOLIO_AES_SBOX_H

#include "kdef.h"

/* SubBytes of 32 bytes: word b of `s` holds their bits b. */
FN void aes_sub_bytes(PRIVATE u32 *s)
{
    u32 x0 = s[0], x1 = s[1], x2 = s[2], x3 = s[3], x4 = s[4], x5 = s[5], x6 = s[6], x7 = s[7];
    u32 t0 = x4 ^ ~x7;
    u32 t1 = LOGIC3(t0, x1, x3, 0x69, t0 ^ (x1 ^ ~x3));
    u32 t2 = x2 ^ ~x4;
    u32 t3 = LOGIC3(x1, x2, x3, 0x69, x1 ^ (x2 ^ ~x3));
    u32 t4 = x2 ^ ~x7;
    u32 t5 = LOGIC3(x0, x5, x6, 0x69, x0 ^ (x5 ^ ~x6));
    u32 t6 = t3 ^ x5;
    u32 t7 = LOGIC3(t1, x5, x6, 0x69, t1 ^ (x5 ^ ~x6));
    u32 t8 = t5 ^ ~x7;
    u32 t9 = LOGIC3(x4, x5, x6, 0x69, x4 ^ (x5 ^ ~x6));
    u32 t10 = x1 ^ ~x7;
    u32 t11 = t0 ^ ~x2;
    u32 t12 = LOGIC3(t2, t11, x5, 0x06, ~t2 & (t11 ^ x5));
    u32 t13 = t3 ^ x6;
    u32 t14 = LOGIC3(t4, t5, x1, 0x69, t4 ^ (t5 ^ ~x1));
    u32 t15 = LOGIC3(x1, x7, t6, 0x8d, (x1 | t6) ^ (~(x7 & t6)));
    u32 t16 = ~(t13 | t0);
    u32 t17 = LOGIC3(t7, t4, t16, 0x56, t16 ^ (t7 | t4));
    u32 t18 = LOGIC3(t13, x0, t8, 0x82, t8 & (t13 ^ ~x0));
    u32 t19 = LOGIC3(x0, t9, t3, 0x59, t3 ^ (x0 | ~t9));
    u32 t20 = t11 ^ ~x1;
    u32 t21 = LOGIC3(t13, t0, t12, 0x6a, t12 ^ (t13 & t0));
    u32 t22 = LOGIC3(t14, t1, x0, 0x06, ~t14 & (t1 ^ x0));
    u32 t23 = LOGIC3(x1, t5, t15, 0xa6, t15 ^ (t5 & ~x1));
    u32 t24 = LOGIC3(t17, t15, t18, 0x69, t17 ^ (t15 ^ ~t18));
    u32 t25 = t1 & ~t20;
    u32 t26 = LOGIC3(t23, t12, t16, 0x69, t23 ^ (t12 ^ ~t16));
    u32 t27 = LOGIC3(t25, t17, t19, 0x96, t25 ^ (t17 ^ t19));
    u32 t28 = LOGIC3(t27, t26, t24, 0xea, t24 | (t27 & t26));
    u32 t29 = LOGIC3(t25, t21, t22, 0x69, t25 ^ (t21 ^ ~t22));
    u32 t30 = LOGIC3(t29, t24, t27, 0xea, t27 | (t29 & t24));
    u32 t31 = LOGIC3(t29, t26, t28, 0xa6, t28 ^ (t26 & ~t29));
    u32 t32 = LOGIC3(t1, x0, t31, 0x28, t31 & (t1 ^ x0));
    u32 t33 = t29 & t26;
    u32 t34 = t33 ^ t27;
    u32 t35 = LOGIC3(t26, t29, t30, 0xa6, t30 ^ (t29 & ~t26));
    u32 t36 = LOGIC3(t5, x1, t35, 0x82, t35 & (t5 ^ ~x1));
    u32 t37 = t35 & ~t5;
    u32 t38 = t33 ^ t24;
    u32 t39 = LOGIC3(t24, t26, t34, 0xd8, t24 ^ (t34 & (t24 ^ t26)));
    u32 t40 = t35 ^ ~t31;
    u32 t41 = LOGIC3(t39, t31, t1, 0x28, t1 & (t39 ^ t31));
    u32 t42 = t39 & x0;
    u32 t43 = LOGIC3(t5, x4, t39, 0x82, t39 & (t5 ^ ~x4));
    u32 t44 = LOGIC3(t20, t39, t31, 0x06, ~t20 & (t39 ^ t31));
    u32 t45 = LOGIC3(t27, t29, t38, 0xd8, t27 ^ (t38 & (t27 ^ t29)));
    u32 t46 = LOGIC3(t13, x0, t45, 0x82, t45 & (t13 ^ ~x0));
    u32 t47 = t41 ^ ~t42;
    u32 t48 = LOGIC3(t6, t45, t35, 0x06, ~t6 & (t45 ^ t35));
    u32 t49 = LOGIC3(t10, t45, t35, 0x06, ~t10 & (t45 ^ t35));
    u32 t50 = LOGIC3(t40, t7, t49, 0x56, t49 ^ (t40 | t7));
    u32 t51 = t48 ^ t37;
    u32 t52 = LOGIC3(t45, t8, t50, 0x6a, t50 ^ (t45 & t8));
    u32 t53 = LOGIC3(t46, t42, t37, 0x96, t46 ^ (t42 ^ t37));
    u32 t54 = t45 ^ ~t39;
    u32 t55 = t54 ^ t40;
    u32 t56 = LOGIC3(t47, t48, t49, 0x96, t47 ^ (t48 ^ t49));
    u32 t57 = LOGIC3(t11, x5, t55, 0x28, t55 & (t11 ^ x5));
    u32 t58 = t52 ^ t47;
    u32 t59 = ~(t54 | t13);
    u32 t60 = ~(t54 | t0);
    u32 t61 = LOGIC3(t57, t50, t37, 0x69, t57 ^ (t50 ^ ~t37));
    u32 t62 = LOGIC3(t40, t4, t59, 0xa9, t59 ^ (~(t40 | t4)));
    u32 t63 = LOGIC3(t2, t55, t60, 0x59, t60 ^ (t2 | ~t55));
    u32 t64 = LOGIC3(t14, t31, t63, 0xa6, t63 ^ (t31 & ~t14));
    u32 t65 = LOGIC3(t64, t44, t32, 0x96, t64 ^ (t44 ^ t32));
    u32 t66 = t65 ^ t41;
    u32 t67 = LOGIC3(t58, t62, t60, 0x69, t58 ^ (t62 ^ ~t60));
    u32 t68 = LOGIC3(t66, t57, t59, 0x96, t66 ^ (t57 ^ t59));
    u32 t69 = LOGIC3(t63, t46, t36, 0x96, t63 ^ (t46 ^ t36));
    u32 t70 = t69 ^ t61;
    u32 t71 = LOGIC3(t64, t57, t51, 0x69, t64 ^ (t57 ^ ~t51));
    u32 t72 = t65 ^ ~t53;
    u32 t73 = t66 ^ ~t51;
    u32 t74 = LOGIC3(t71, t59, t44, 0x96, t71 ^ (t59 ^ t44));
    u32 t75 = t69 ^ ~t56;
    u32 t76 = LOGIC3(t71, t58, t43, 0x96, t71 ^ (t58 ^ t43));
    s[0] = t75;
    s[1] = t70;
    s[2] = t76;
    s[3] = t72;
    s[4] = t73;
    s[5] = t67;
    s[6] = t68;
    s[7] = t74;
}

/* Its inverse. */
FN void aes_inv_sub_bytes(PRIVATE u32 *s)
{
    u32 x0 = s[0], x1 = s[1], x2 = s[2], x3 = s[3], x4 = s[4], x5 = s[5], x6 = s[6], x7 = s[7];
    u32 t0 = x0 ^ ~x1;
    u32 t1 = x4 ^ ~x6;
    u32 t2 = x2 ^ x7;
    u32 t3 = x3 ^ ~x4;
    u32 t4 = x6 ^ x7;
    u32 t5 = x0 ^ ~x3;
    u32 t6 = t0 ^ ~t4;
    u32 t7 = t1 ^ ~x5;
    u32 t8 = t3 ^ ~t4;
    u32 t9 = LOGIC3(t3, x1, x2, 0x69, t3 ^ (x1 ^ ~x2));
    u32 t10 = x3 ^ ~x6;
    u32 t11 = t0 ^ ~t3;
    u32 t12 = LOGIC3(t3, x0, t1, 0x28, t1 & (t3 ^ x0));
    u32 t13 = t0 ^ t10;
    u32 t14 = LOGIC3(x4, x7, x6, 0x28, x6 & (x4 ^ x7));
    u32 t15 = t0 ^ ~t1;
    u32 t16 = LOGIC3(t2, x5, t15, 0x82, t15 & (t2 ^ ~x5));
    u32 t17 = LOGIC3(t6, t7, x2, 0x06, ~t6 & (t7 ^ x2));
    u32 t18 = LOGIC3(t10, x1, x5, 0x96, t10 ^ (x1 ^ x5));
    u32 t19 = LOGIC3(t13, t2, t14, 0x96, t13 ^ (t2 ^ t14));
    u32 t20 = LOGIC3(t3, x5, t15, 0x42, (t3 ^ t15) & (x5 ^ t15));
    u32 t21 = LOGIC3(t3, t15, t2, 0x06, ~t3 & (t15 ^ t2));
    u32 t22 = t16 ^ ~t5;
    u32 t23 = LOGIC3(t8, t9, t21, 0x56, t21 ^ (t8 | t9));
    u32 t24 = t18 & ~t11;
    u32 t25 = LOGIC3(t23, t17, t19, 0x69, t23 ^ (t17 ^ ~t19));
    u32 t26 = LOGIC3(t4, t5, t21, 0x56, t21 ^ (t4 | t5));
    u32 t27 = LOGIC3(t24, t7, x0, 0x06, ~t24 & (t7 ^ x0));
    u32 t28 = LOGIC3(t26, t20, t24, 0x96, t26 ^ (t20 ^ t24));
    u32 t29 = LOGIC3(t26, t22, t17, 0x69, t26 ^ (t22 ^ ~t17));
    u32 t30 = LOGIC3(t23, t27, t12, 0x96, t23 ^ (t27 ^ t12));
    u32 t31 = LOGIC3(t30, t29, t28, 0x45, ~t28 & (t29 | ~t30));
    u32 t32 = LOGIC3(t25, t30, t28, 0xa6, t28 ^ (t30 & ~t25));
    u32 t33 = LOGIC3(t25, t28, t29, 0xa2, t29 & (t25 | ~t28));
    u32 t34 = LOGIC3(t25, t30, t29, 0x59, t29 ^ (t25 | ~t30));
    u32 t35 = LOGIC3(t30, t25, t31, 0x6a, t31 ^ (t30 & t25));
    u32 t36 = LOGIC3(t29, t25, t32, 0x27, (t29 | t32) ^ (t25 | ~t32));
    u32 t37 = LOGIC3(t30, t25, t33, 0x56, t33 ^ (t30 | t25));
    u32 t38 = LOGIC3(t11, t37, t36, 0x06, ~t11 & (t37 ^ t36));
    u32 t39 = LOGIC3(t37, t36, t18, 0x28, t18 & (t37 ^ t36));
    u32 t40 = LOGIC3(t3, x0, t37, 0x28, t37 & (t3 ^ x0));
    u32 t41 = LOGIC3(t15, x5, t36, 0x82, t36 & (t15 ^ ~x5));
    u32 t42 = LOGIC3(t35, t1, x7, 0x06, ~t35 & (t1 ^ x7));
    u32 t43 = LOGIC3(t35, x4, x7, 0x06, ~t35 & (x4 ^ x7));
    u32 t44 = LOGIC3(t13, t36, t42, 0x59, t42 ^ (t13 | ~t36));
    u32 t45 = LOGIC3(t28, t30, t34, 0x27, (t28 | t34) ^ (t30 | ~t34));
    u32 t46 = t45 ^ ~t36;
    u32 t47 = t35 ^ t37;
    u32 t48 = t15 & ~t45;
    u32 t49 = LOGIC3(t13, t2, t46, 0x82, t46 & (t13 ^ ~t2));
    u32 t50 = LOGIC3(t8, t46, t47, 0x09, ~(t8 | (t46 ^ t47)));
    u32 t51 = LOGIC3(t9, t46, t47, 0x09, ~(t9 | (t46 ^ t47)));
    u32 t52 = t39 ^ ~t40;
    u32 t53 = LOGIC3(t47, t4, t5, 0x09, ~(t47 | (t4 ^ t5)));
    u32 t54 = LOGIC3(t45, t2, x5, 0x09, ~(t45 | (t2 ^ x5)));
    u32 t55 = t48 ^ t38;
    u32 t56 = LOGIC3(t52, t53, t44, 0x69, t52 ^ (t53 ^ ~t44));
    u32 t57 = t45 ^ t35;
    u32 t58 = ~(t47 | t4);
    u32 t59 = LOGIC3(t37, t1, t49, 0x95, t49 ^ (~(t37 & t1)));
    u32 t60 = LOGIC3(t7, x2, t57, 0x28, t57 & (t7 ^ x2));
    u32 t61 = t54 ^ ~t43;
    u32 t62 = LOGIC3(t49, t61, t55, 0x96, t49 ^ (t61 ^ t55));
    u32 t63 = t57 & ~t6;
    u32 t64 = LOGIC3(t59, t50, t38, 0x69, t59 ^ (t50 ^ ~t38));
    u32 t65 = t64 ^ ~t53;
    u32 t66 = t60 ^ ~t40;
    u32 t67 = LOGIC3(t59, t58, t61, 0x69, t59 ^ (t58 ^ ~t61));
    u32 t68 = LOGIC3(t66, t55, t41, 0x96, t66 ^ (t55 ^ t41));
    u32 t69 = LOGIC3(t65, t60, t54, 0x69, t65 ^ (t60 ^ ~t54));
    u32 t70 = LOGIC3(t62, t56, t50, 0x96, t62 ^ (t56 ^ t50));
    u32 t71 = LOGIC3(t67, t56, t63, 0x96, t67 ^ (t56 ^ t63));
    u32 t72 = LOGIC3(t3, t46, t63, 0xa6, t63 ^ (t46 & ~t3));
    u32 t73 = LOGIC3(t64, t51, t52, 0x69, t64 ^ (t51 ^ ~t52));
    u32 t74 = t65 ^ t41;
    u32 t75 = LOGIC3(t67, t68, t51, 0x96, t67 ^ (t68 ^ t51));
    u32 t76 = t74 ^ ~t39;
    u32 t77 = LOGIC3(t72, t58, t48, 0x96, t72 ^ (t58 ^ t48));
    u32 t78 = LOGIC3(t74, t66, t42, 0x96, t74 ^ (t66 ^ t42));
    s[0] = t77;
    s[1] = t73;
    s[2] = t78;
    s[3] = t75;
    s[4] = t69;
    s[5] = t70;
    s[6] = t71;
    s[7] = t76;
}

#endif
